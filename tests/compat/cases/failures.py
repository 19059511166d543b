"""Workers that fail, error files, restarts."""
from scenario import HANG, LOGS, OWN_ERROR_FILE, TWO, Launch, scenario

# failures
scenario("fail_exit_7", f"{TWO} w.py +sync '+r0:exit=7' {HANG}")
scenario("fail_rank1_exit_3", f"{TWO} w.py +sync '+r1:exit=3' {HANG}")
scenario("fail_exit_255", "w.py +exit=255")
for name in ("SEGV", "KILL", "TERM", "ABRT"):
    scenario(f"fail_signal_{name.lower()}", f"{TWO} w.py +sync '+r1:kill={name}' {HANG}")
scenario("fail_sibling_exits_0", f"{TWO} w.py '+r1:on=TERM:exit=0' +sync '+r0:exit=3' {HANG}")
scenario("fail_sibling_exits_5", f"{TWO} w.py '+r0:on=TERM:exit=5' +sync '+r1:exit=3' {HANG}")
scenario("fail_sibling_slow_stop", f"{TWO} w.py '+r1:on=TERM:sleep=2,out=saved,exit=0' +sync '+r0:exit=3' {HANG}")
scenario("fail_sibling_slow_short_timeout", f"{TWO} --shutdown-timeout=1 w.py '+r1:on=TERM:sleep=3,out=saved,exit=0' +sync '+r0:exit=3' {HANG}",
         accidental="ends out")
scenario("fail_sibling_stubborn", f"{TWO} w.py '+r1:on=TERM:ignore' +sync '+r0:exit=3' '+sleep=50'")
scenario("fail_after_peer_success", f"{TWO} w.py '+r0:touch=ok' '+r0:exit=0' +await=ok +sleep=0.6 +exit=3")
scenario("fail_second_dies_of_term", f"--nproc-per-node=3 w.py '+on=TERM:exit=9' +sync '+r2:exit=3' {HANG}")
scenario("fail_errfile_named", f"{LOGS} w.py +sync '+r1:errfile=rec:1700000000:boom' '+r1:exit=1' {HANG}")
scenario("fail_errfile_earlier_on_sibling", f"{LOGS} w.py '+r1:on=TERM:errfile=rec:5:early,exit=1' +sync '+r0:errfile=rec:1700000000:late' '+r0:exit=1' {HANG}")
scenario("fail_errfile_string", f"{LOGS} w.py '+r1:on=TERM:errfile=str::text,exit=1' +sync '+r0:exit=1' {HANG}")
scenario("fail_errfile_bad_json", f"{LOGS} w.py +sync '+r0:errfile=bad' '+r0:exit=1' {HANG}")
scenario("fail_errfile_exit0_ignored", f"{LOGS} w.py +errfile=rec:1:odd")
scenario("fail_own_errfile_copied", Launch(f"{TWO} w.py +sync '+r1:errfile=rec:1700000000:boom' '+r1:exit=4' {HANG}", OWN_ERROR_FILE), files=["le.json"])
scenario("fail_own_errfile_signal", Launch("w.py +errfile=rec:1700000000:boom +kill=SEGV", OWN_ERROR_FILE), files=["le.json"])
scenario("fail_own_errfile_string", Launch("w.py +errfile=str:17:boom +exit=4", OWN_ERROR_FILE), files=["le.json"])
scenario("fail_own_errfile_absent", Launch("w.py +exit=4", OWN_ERROR_FILE), files=["le.json"])
scenario("fail_own_errfile_bad_value", Launch("--max-restarts -1 w.py", OWN_ERROR_FILE), files=["le.json"])
scenario("fail_own_errfile_usage", Launch("--frobnicate w.py", OWN_ERROR_FILE), files=["le.json"])
scenario("fail_own_errfile_success", Launch("w.py", OWN_ERROR_FILE), files=["le.json"])
scenario("fail_redirected", f"{LOGS} -r 3 w.py +out=o +err=e +sync '+r0:exit=2' {HANG}")
scenario("ok_early_exit_keeps_running", f"{TWO} w.py '+r0:exit=0' +sleep=1.5 +out=end")
scenario("ok_background_child_left", "w.py +child=6")
scenario("fail_background_child_of_culprit", f"{TWO} w.py '+r0:child=6' +sync '+r0:exit=3' {HANG}")
scenario("fail_background_child_of_sibling", f"{TWO} w.py '+r1:child=6' +sync '+r0:exit=3' {HANG}")

# restarts
scenario("restart_none", f"{TWO} w.py +sync '+r0:exit=1' {HANG}")
scenario("restart_always_fails", f"--max-restarts 2 {TWO} w.py +sync '+r0:exit=1' {HANG}", environment=True)
scenario("restart_third_works", f"--max-restarts 3 {LOGS} -r 3 w.py +out=o +sync '+r1,i0:exit=1' '+r0,i1:exit=1' '+i0:await=never' '+i1:await=never'")
scenario("restart_whole_group", f"--max-restarts 1 {TWO} w.py '+r0,i0:touch=ok' '+r0,i0:exit=0' '+i0:await=ok' '+i0:sleep=0.6' '+i0:exit=3'")
scenario("restart_after_kill", f"--max-restarts 1 {TWO} w.py +sync '+r1,i0:kill=KILL' '+i0:await=never'")
scenario("restart_sibling_slow_stop", f"--max-restarts 1 {TWO} w.py '+r1,i0:on=TERM:sleep=1.5,out=saved,exit=0' +sync '+r0,i0:exit=3' '+i0:await=never'")
scenario("restart_static", f"--max-restarts 1 --master-port={{P}} --rdzv-id=s {TWO} w.py +sync '+r1,i0:exit=1' '+i0:await=never'", environment=True)
scenario("restart_standalone", f"--standalone --max-restarts 1 {TWO} w.py +sync '+r1,i0:exit=1' '+i0:await=never'", environment=True)
scenario("restart_errfile_of_last_attempt", Launch(f"--max-restarts 1 {LOGS} w.py +sync '+r0,i0:errfile=rec:11:first' "
                                                          f"'+r1,i1:errfile=rec:22:second' '+r0,i0:exit=1' '+r1,i1:exit=1' {HANG}", OWN_ERROR_FILE), files=["le.json"])
scenario("restart_store_is_fresh", f"--max-restarts 1 {TWO} w.py '+r0,i0:storeset=k' '+r0,i0:touch=set' '+i0:await=set' "
         f"'+i1:storecheck=k' +sync '+r1,i0:exit=1' '+i0:await=never'")
scenario("restart_run_path", "--run-path --max-restarts 1 runpath3.py", limit=180)
