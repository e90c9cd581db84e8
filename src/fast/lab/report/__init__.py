"""The report: one page, and the same figures and numbers as files, from the dictionary of `run.json`.

Outside, `write_report` and `write_report_again` make that of a comparison, and `write_run_report` that of a single
run. matplotlib takes a second to import, so nothing here imports it before a report is written.
"""

from fast.lab.report.run_reading import run_data
from fast.lab.report.writing import write_report, write_report_again, write_run_report

__all__ = ["run_data", "write_report", "write_report_again", "write_run_report"]
