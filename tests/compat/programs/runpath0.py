import os
import sys

os.write(1, f"@W runpath r{os.environ['RANK']} {__name__} {sys.argv[1:]}\n".encode())
sys.exit(0)
