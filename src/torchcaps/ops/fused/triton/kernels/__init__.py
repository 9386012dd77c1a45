"""What runs on the device. Imported only where triton is, by ``library.load``."""
