import os

os.write(1, b"@W dir main\n")
