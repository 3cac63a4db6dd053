"""Defects that are planted into a broker at run time, and the cheapest work under which each shows."""
