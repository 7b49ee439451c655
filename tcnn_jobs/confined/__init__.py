"""What strangers sent, looked at in processes with little memory, little time and nobody's secrets."""
