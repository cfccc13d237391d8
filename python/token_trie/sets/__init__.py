"""What may be answered: tries, choices in the types that programs have, and how they are spelled behind a prompt."""
