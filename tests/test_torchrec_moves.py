"""Tables that move between ranks while TorchRec trains them: two processes, gloo, CPU."""
