"""What makes a function a stage: key, cache, scratch folder, several processes, replay."""
