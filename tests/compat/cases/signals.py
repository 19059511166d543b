"""Signals to the launcher."""
from scenario import OWN_ERROR_FILE, TWO, Launch, scenario

WAIT = "'+await=go'"
TERM = "start 0; starts 2; signal 0 TERM; wait 0"

for name in ("TERM", "INT", "HUP", "QUIT"):
    scenario(f"sig_{name.lower()}", f"{TWO} w.py {WAIT}", steps=f"start 0; starts 2; signal 0 {name}; wait 0")
scenario("sig_term_workers_exit_0", f"{TWO} w.py '+on=TERM:out=saved,exit=0' {WAIT}", steps=TERM)
scenario("sig_term_workers_slow", f"{TWO} w.py '+on=TERM:sleep=2,out=saved,exit=0' {WAIT}", steps=TERM)
scenario("sig_term_stubborn", f"{TWO} --shutdown-timeout=1 w.py '+r1:on=TERM:ignore' {WAIT}", steps=TERM)
scenario("sig_term_stubborn_env", Launch(f"{TWO} w.py '+on=TERM:ignore' {WAIT}", {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "1"}), steps=TERM)
scenario("sig_term_option_beats_env", Launch(f"{TWO} --shutdown-timeout=1 w.py '+on=TERM:ignore' {WAIT}", {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "20"}), steps=TERM)
scenario("sig_term_timeout_zero", f"{TWO} --shutdown-timeout=0 w.py '+on=TERM:sleep=0.5,out=no,exit=0' {WAIT}", steps=TERM, accidental="ends out")
scenario("sig_term_twice", f"--shutdown-timeout=4 w.py '+on=TERM:ignore' {WAIT}", steps="start 0; starts 1; signal 0 TERM; sleep 1; signal 0 TERM; wait 0",
         accidental="ends")
scenario("sig_term_no_restart", f"--max-restarts 3 {TWO} w.py {WAIT}", steps=TERM)
scenario("sig_term_own_errfile", Launch(f"{TWO} w.py {WAIT}", OWN_ERROR_FILE), steps=TERM, files=["le.json"])
scenario("sig_term_one_done", f"{TWO} w.py '+r0:touch=ok' '+r0:exit=0' {WAIT}", steps="start 0; starts 2; await ok; sleep 0.5; signal 0 TERM; wait 0")
scenario("sig_term_with_child", f"w.py +child=8 {WAIT}", steps="start 0; starts 1; sleep 0.3; signal 0 TERM; wait 0")
scenario("sig_int_process_group", f"{TWO} w.py {WAIT}", steps="start 0; starts 2; pgsignal 0 INT; wait 0")
scenario("sig_usr1_unhandled", f"{TWO} w.py '+on=USR1:ignore' {WAIT}", steps="start 0; starts 2; signal 0 USR1; sleep 1; touch go; wait 0; sleep 1",
         accidental="ends success")
scenario("sig_usr1_handled", f"{TWO} --signals-to-handle=SIGUSR1 w.py {WAIT}", steps="start 0; starts 2; signal 0 USR1; wait 0")
scenario("sig_term_not_in_list", f"{TWO} --signals-to-handle=SIGUSR1 w.py {WAIT}", steps="start 0; starts 2; signal 0 TERM; wait 0; touch go; sleep 1",
         accidental="ends")
scenario("sig_kill_launcher", f"{TWO} w.py {WAIT}", steps="start 0; starts 2; signal 0 KILL; wait 0; sleep 0.5; touch go; sleep 1", accidental="ends")
scenario("sig_hup_nohup", Launch(f"{TWO} w.py {WAIT}", nohup=True), steps="start 0; starts 2; signal 0 HUP; sleep 1; touch go; wait 0",
         accidental="ends success")
scenario("sig_term_during_sibling_stop", f"{TWO} --shutdown-timeout=1 w.py '+r1:on=TERM:ignore' '+r1:touch=r1' +sync '+r0:exit=3' {WAIT}",
         steps="start 0; starts 2; sleep 1.5; signal 0 TERM; wait 0", accidental="ends")
