"""Records: run folders without their heavy files, in an archive."""
