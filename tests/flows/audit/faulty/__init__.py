"""Say a text backward, with the fault that the settings name."""
