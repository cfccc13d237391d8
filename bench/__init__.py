"""What a constrained token costs, beside the other engines that llama.cpp users have."""
