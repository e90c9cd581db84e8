"""What `advisor.py` is made of: situations, trainings, answers, notes that are kept, and the fit."""
