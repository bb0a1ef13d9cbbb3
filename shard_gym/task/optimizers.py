"""Optimizers that train tables, and what they keep beside the weights."""

OPTIMIZERS = ("sgd", "rowwise_adagrad", "adam")  # of whole tasks
STATES = {  # of each optimizer in FBGEMM: bytes a row, and bytes a weight, fp32 whatever the weights are
    "none": (0, 0),
    "sgd": (0, 0),
    "rowwise_adagrad": (4, 0),
    "adagrad": (0, 4),
    "lars_sgd": (0, 4),
    "partial_rowwise_adam": (4, 4),
    "partial_rowwise_lamb": (4, 4),
    "adam": (0, 8),
    "lamb": (0, 8),
    "adamw": (0, 8),  # of PyTorch, for copies (dp); FBGEMM has neither
    "rmsprop": (0, 4),
}
