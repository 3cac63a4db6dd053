"""The proof that is made from outside: histories of real processes, kill points, simulation, fuzzing."""
