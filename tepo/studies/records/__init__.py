"""Records of studies: written, read and rechecked."""
