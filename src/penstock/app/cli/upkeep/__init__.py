"""Commands for operators: start, doctor, scrub, rebuild, backup."""
