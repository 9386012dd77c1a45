"""Programs to start from: each is one file, uses public names of torchcaps alone, and is tested."""
