"""Pictures for people, made from what is on record."""
