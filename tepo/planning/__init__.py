"""What a study will take: memory, time, disk and GPU hours."""
