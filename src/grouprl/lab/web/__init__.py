"""The lab: a local web page that runs, shows and explains GRPO. It reads run directories and nothing else."""
