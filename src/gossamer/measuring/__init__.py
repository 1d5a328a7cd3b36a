"""What measuring takes from the operating system: peak memory, and processes of their own."""
