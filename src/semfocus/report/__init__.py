"""Pages: what a study found, read from its folder alone and written as one HTML file that needs nothing else."""
