"""What the commands of the command line do. Imported when a command runs."""
