"""What is done to artifacts: one file a stage, named by its verb, and what the stages share."""
