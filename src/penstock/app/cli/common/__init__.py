"""What all commands share: targets, options of policies, output and words."""
