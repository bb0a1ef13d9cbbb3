"""TorchRec: models in, plans out, reports in its words."""
