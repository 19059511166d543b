"""Several nodes: a launcher for each, on this machine."""
from scenario import HANG, TWO, Launch, scenario


def static(rank, rest, more=""):
    return f"--nnodes=2 --node-rank={rank} --master-addr=127.0.0.1 --master-port={{P}} {more} {rest}"


scenario("static_two_nodes", static(0, "w.py", TWO), static(1, "w.py", TWO), environment=True)
scenario("static_rank1_first", static(0, "w.py"), static(1, "w.py"), steps="start 1; sleep 4; start 0")
scenario("static_uneven", static(0, "w.py"), static(1, "w.py", TWO), environment=True)
scenario("static_roles", static(0, "w.py", f"--role ps {TWO}"), static(1, "w.py", f"--role tr {TWO}"), environment=True)
scenario("static_nnodes_range_uses_max", static(0, "w.py").replace("--nnodes=2", "--nnodes=1:2"), static(1, "w.py").replace("--nnodes=2", "--nnodes=1:2"),
         environment=True)
SR = "w.py '+i0:starts=4' '+n1,l1,i0:exit=1' '+n1,i0:await=never' '+n0:await=two' '+n1,l1,i1:touch=two'"
scenario("static_restart_is_local", *[static(n, SR, f"{TWO} --max-restarts=1") for n in (0, 1)])
scenario("static_other_node_unaware_of_failure", static(0, "w.py +await=dead +sleep=0.5 +out=end", "--rdzv-conf=timeout=30"),
         static(1, "w.py +starts=2 +exit=3", "--rdzv-conf=timeout=30"),
         steps="start 0; start 1; starts 2; wait 1; touch dead; waitmax 0 5; signal 0 KILL; wait 0", accidental="success ends")
scenario("static_one_missing", static(0, "w.py", "--rdzv-conf=timeout=3"), limit=45)
scenario("static_exit_barrier", static(0, "w.py"), static(1, "w.py +starts=2 +sleep=2 +out=late"))
scenario("static_store_shared", *[static(n, "w.py '+r0:storeset=k' '+r0:touch=set' +await=set +storecheck=k +starts=2 '+r0:sleep=1'") for n in (0, 1)])
scenario("static_term_in_exit_barrier", static(0, "w.py +starts=2"), static(1, "w.py +starts=2 +touch=up +await=go"),
         steps="start 0; start 1; starts 2; await up; sleep 2; signal 0 TERM; waitmax 0 4; touch go; wait 1; wait 0", accidental="success")


def c10d(n, rest, more="", nn="2", conf=""):
    conf = f"--rdzv-conf={conf}" if conf else ""
    return f"--nnodes={nn} --rdzv-backend=c10d --rdzv-id=job --rdzv-endpoint=127.0.0.1:{{P}} --local-addr=127.0.0.{n + 1} {conf} {more} {rest}"


scenario("c10d_two_nodes", c10d(0, "w.py", TWO), c10d(1, "w.py", TWO), environment=True)
scenario("c10d_uneven", c10d(0, "w.py", TWO), c10d(1, "w.py"), environment=True)
scenario("c10d_node_rank_ignored", c10d(0, "w.py", "--node-rank=1"), c10d(1, "w.py", "--node-rank=0"))
scenario("c10d_rank_follows_address", c10d(1, "w.py"), c10d(0, "w.py"), steps="start 0; port; sleep 1; start 1")
scenario("c10d_roles", c10d(0, "w.py", "--role a"), c10d(1, "w.py", f"--role b {TWO}"), environment=True)
scenario("c10d_is_host", c10d(0, "w.py", conf="is_host=1"), c10d(1, "w.py", conf="is_host=0"))
scenario("c10d_file_store", *[c10d(n, "w.py", conf="store_type=file").replace("127.0.0.1:{P}", "{D}/store") for n in (0, 1)])
scenario("c10d_store_sharing_off", *[Launch(c10d(n, "w.py", TWO), {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}) for n in (0, 1)], environment=True)
scenario("c10d_join_timeout", c10d(0, "w.py", conf="join_timeout=3"), limit=45)
scenario("c10d_nobody_at_endpoint", c10d(0, "w.py", conf="is_host=0,read_timeout=3"), limit=45)
scenario("c10d_range_min_only", c10d(0, "w.py", nn="1:2", conf="last_call_timeout=1"))
scenario("c10d_range_max_starts_at_once", *[c10d(n, "w.py", nn="1:2", conf="last_call_timeout=25") for n in (0, 1)])
RS = "w.py '+n1,i0:starts=2' '+n1,i0:exit=1' '+i0:await=never' +starts=4"
scenario("c10d_restart_one_fails", c10d(0, RS, "--max-restarts=2"), c10d(1, RS, "--max-restarts=2"), environment=True)
RL = RS.replace("w.py", "w.py +i0:out=first +i1:out=second")
scenario("c10d_membership_change_wipes_logs", *[c10d(n, RL, "--max-restarts=2 --log-dir={D}/logs -r 1") for n in (0, 1)])
RU = "w.py '+i0:starts=2' '+i>0:starts=4' '+n1:exit=1' +await=never"
scenario("c10d_restart_used_up", c10d(0, RU, "--max-restarts=1", conf="is_host=0"), c10d(1, RU, "--max-restarts=1", conf="is_host=1"))
scenario("c10d_host_fails", c10d(0, f"w.py +starts=2 {HANG}", conf="is_host=0"), c10d(1, "w.py +starts=2 +exit=3", conf="is_host=1"))
scenario("c10d_guest_fails", c10d(0, "w.py +starts=2 +await=never", conf="is_host=1"), c10d(1, "w.py +starts=2 +exit=3", conf="is_host=0"),
         steps="start 0; start 1; starts 2; wait 1; sleep 3; signal 0 TERM; wait 0", accidental="ends success")
scenario("c10d_guest_fails_after_peer_success", c10d(0, "w.py +starts=2", conf="is_host=1"), c10d(1, "w.py +starts=2 +sleep=1.5 +exit=3", conf="is_host=0"),
         steps="start 0; start 1; starts 2; wait 1; waitmax 0 8; signal 0 KILL; wait 0", accidental="success")
scenario("c10d_store_shared", *[c10d(n, "w.py '+r0:storeset=k' '+r0:touch=set' +await=set +storecheck=k +starts=2 '+r0:sleep=1'") for n in (0, 1)])
scenario("c10d_exit_barrier", c10d(0, "w.py +starts=2"), c10d(1, "w.py +starts=2 +sleep=2 +out=late"))
UP = "w.py '+n0,i0:await=never' +starts=3"
SCALE = "last_call_timeout=1,read_timeout=6"
scenario("c10d_scale_up_newcomer_last", c10d(0, UP, nn="1:2", conf=SCALE), c10d(1, UP, nn="1:2", conf=SCALE), steps="start 0; starts 1; start 1",
         environment=True)
scenario("c10d_scale_up_newcomer_first", c10d(1, UP, nn="1:2", conf=SCALE), c10d(0, UP, nn="1:2", conf=SCALE), steps="start 0; starts 1; start 1",
         environment=True)
scenario("c10d_scale_up_sharing_off", *[Launch(c10d(n, UP, nn="1:2", conf=SCALE), {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}) for n in (0, 1)],
         steps="start 0; starts 1; start 1", environment=True)
REP = "w.py '+n0,i0:await=never' '+n1:await=never' +starts=4"
for suffix, variables in (("", {}), ("_sharing_off", {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})):
    agents = [c10d(n, REP, conf=f"read_timeout=6,keep_alive_interval=1,is_host={int(n == 0)}") for n in (0, 1, 2)]
    scenario("c10d_replace_node" + suffix, *[Launch(agent, variables) for agent in agents],
             steps="start 0; start 1; starts 2; signal 1 KILL; wait 1; start 2", accidental="ends", environment=True)
scenario("c10d_peer_leaves_unnoticed", c10d(0, "w.py +await=go", nn="1:2", conf="is_host=1,last_call_timeout=20"),
         c10d(1, "w.py +await=never", nn="1:2", conf="is_host=0,last_call_timeout=20"),
         steps="start 0; start 1; starts 2; signal 1 TERM; wait 1; sleep 2; signal 0 TERM; wait 0", accidental="ends")
scenario("c10d_scale_down_on_next_failure",
         c10d(0, "w.py '+i0:await=go' '+i0:exit=1'", "--max-restarts=1", nn="1:2", conf="is_host=1,last_call_timeout=8,keep_alive_interval=1"),
         c10d(1, "w.py +await=never", nn="1:2", conf="is_host=0,last_call_timeout=8,keep_alive_interval=1"),
         steps="start 0; start 1; starts 2; signal 1 KILL; wait 1; sleep 5; touch go; wait 0", accidental="ends")
scenario("c10d_spare_parks", c10d(0, "w.py +await=go", nn="1"), c10d(1, "w.py", nn="1"), steps="start 0; starts 1; start 1; sleep 9; touch go; wait 0",
         accidental="success")
scenario("c10d_two_jobs_one_store", c10d(0, "w.py +await=go", nn="1"), c10d(1, "w.py +starts=2", nn="1").replace("--rdzv-id=job", "--rdzv-id=other"),
         steps="start 0; starts 1; start 1; starts 2; wait 1; touch go")
for name in ("TERM", "INT"):
    scenario(f"sig_{name.lower()}_before_rendezvous", "--nnodes=2 --rdzv-backend=c10d --rdzv-id=j --rdzv-endpoint=127.0.0.1:{P} --local-addr=127.0.0.1 w.py",
             steps=f"start 0; port; sleep 1.5; signal 0 {name}; wait 0")
