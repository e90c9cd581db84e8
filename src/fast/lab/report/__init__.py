"""The report: one page, and the same figures and numbers as files, from the dictionary of `run.json`.

`write_report` and `write_report_again` are all that is used from outside. matplotlib takes a second to
import, so nothing here imports it before a report is written.
"""

from fast.lab.report.writing import write_report, write_report_again

__all__ = ["write_report", "write_report_again"]
