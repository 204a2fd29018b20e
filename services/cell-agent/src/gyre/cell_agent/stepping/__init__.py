"""A cell's duties beside its role changes, one family a module: the world of trainers, batches,
checkpoints, and the weights that trainer and engine hand on.
"""
