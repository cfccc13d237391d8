"""Any tokens that spell a member: what is allowed and what is chosen, beside other engines."""
