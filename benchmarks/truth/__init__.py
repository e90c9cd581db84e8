"""The parts of `simulator_error.py`: what is trained (`tasks`, `cells`), where (`grounds`), in what weather (`weather`,
`awake`), what is kept of it (`keeping`) and what it comes to (`scoring`)."""
