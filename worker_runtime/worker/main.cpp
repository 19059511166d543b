// dtrun-worker.
#include "worker_runtime/worker/worker_main.hpp"

int main(int argc, char** argv) { return dtrun::runtime::worker_main(argc, argv); }
