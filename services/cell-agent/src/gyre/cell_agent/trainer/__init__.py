"""The trainer process of one cell: Megatron-Core behind JSON commands. See README.md."""
