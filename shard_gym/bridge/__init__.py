"""TorchRec: models in, plans out, and its accounting of memory."""
