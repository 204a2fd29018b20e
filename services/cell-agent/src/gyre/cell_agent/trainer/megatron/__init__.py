"""What the trainer takes from Megatron-Core and mbridge, each by one module."""
