"""The batch under accumulation: micro-steps in as they come, gradients and records out."""
