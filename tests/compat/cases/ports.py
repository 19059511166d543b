"""Where the store is: two jobs side by side, a port that is taken."""
from scenario import TWO, scenario

scenario("static_port_taken", "--master-port={P} --rdzv-conf=timeout=3 w.py", steps="listen; start 0", limit=45)
scenario("static_worker_ports_two_jobs", "--master-port={P} w.py +starts=2", "--master-port={P2} w.py +starts=2", environment=True)
scenario("default_two_jobs_at_once", f"{TWO} w.py +starts=4", f"{TWO} w.py +starts=4", environment=True)
scenario("c10d_one_node_two_ports", "--nnodes=1 --rdzv-backend=c10d --rdzv-id=job --rdzv-endpoint=127.0.0.1:{P} --local-addr=127.0.0.1 --nproc-per-node=2 w.py",
         environment=True)
