#include "launcher/agent/worker_environment.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include "rendezvous/base/error.hpp"
#include "rendezvous/contract/environment.hpp"
#include "rendezvous/contract/snapshot_memory.hpp"

namespace dtrun::launcher {
namespace {

using Variables = std::map<std::string, std::optional<std::string>, std::less<>>;  // nothing: removed

constexpr auto kCudaDevices = "CUDA_VISIBLE_DEVICES";
constexpr auto kHipDevices = "HIP_VISIBLE_DEVICES";
constexpr auto kGlooInterface = "GLOO_SOCKET_IFNAME", kNcclInterface = "NCCL_SOCKET_IFNAME";

std::optional<std::string_view> value_in(const std::vector<std::string>& list, std::string_view name) {
  for (const std::string_view entry : list) {
    if (entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=')
      return entry.substr(name.size() + 1);
  }
  return std::nullopt;
}

// --virtual-local-rank: each worker sees one device, as device 0.
void show_one_device(Variables& variables, const std::vector<std::string>& inherited, int local_rank) {
  const auto hip = value_in(inherited, kHipDevices);
  const bool use_hip = hip && !hip->empty();
  const auto list = use_hip ? hip : value_in(inherited, kCudaDevices);
  std::string device = std::to_string(local_rank);
  if (list) {
    auto rest = *list;
    for (int i = 0; i < local_rank; ++i) {
      const auto comma = rest.find(',');
      if (comma == std::string_view::npos) {
        throw UsageError("cli", fmt::format("--virtual-local-rank: {} is \"{}\", which has no device for local rank {}",
                                            use_hip ? kHipDevices : kCudaDevices, *list, local_rank));
      }
      rest.remove_prefix(comma + 1);
    }
    rest = rest.substr(0, rest.find(','));
    const auto begin = std::min(rest.find_first_not_of(' '), rest.size());
    device = rest.substr(begin, rest.find_last_not_of(' ') - begin + 1);
  }
  variables[kCudaDevices] = device;
  if (use_hip) variables[kHipDevices] = device;
}

}  // namespace

std::vector<std::string> worker_environment(const std::vector<std::string>& inherited, const LaunchConfig& config,
                                            const RoundPlace& place, int local_rank, const ContractFiles& files) {
  const auto& round = place.round;
  const auto text = [](int number) { return std::to_string(number); };
  Variables variables;
  variables[environment::kRank] = text(round.first_rank + local_rank);
  variables[environment::kLocalRank] = config.virtual_local_rank ? "0" : text(local_rank);
  variables[environment::kGroupRank] = text(round.group_rank);
  variables[environment::kRoleRank] = text(round.first_role_rank + local_rank);
  variables[environment::kRoleName] = config.role;
  variables[environment::kWorldSize] = text(round.world_size);
  variables[environment::kLocalWorldSize] = text(place.local_world_size);
  variables[environment::kGroupWorldSize] = text(round.group_world_size);
  variables[environment::kRoleWorldSize] = text(round.role_world_size);
  variables[environment::kMasterAddr] = round.master_addr;
  variables[environment::kMasterPort] = text(round.master_port);
  variables[environment::kRestartCount] = text(round.restarts);
  variables[environment::kMaxRestarts] = text(config.max_restarts);
  variables[environment::kRunId] = place.run_id;
  variables[environment::kUseAgentStore] = round.agent_store ? "True" : "False";
  variables[environment::kErrorFile] = files.error;
  variables[environment::kProgressFile] = files.progress.empty() ? std::nullopt : std::optional(files.progress);
  variables[environment::kFlightRecord] = files.flight.empty() ? std::nullopt : std::optional(files.flight);
  variables[kTokenFileVariable] = std::nullopt;
  variables["PET_RDZV_TOKEN_FILE"] = std::nullopt;
  variables[environment::kSnapshotFd] = place.snapshot_memory ? std::optional(text(kSnapshotDescriptor)) : std::nullopt;
  variables[environment::kJob] = place.job.empty() ? std::nullopt : std::optional(place.job);
  variables["TORCHELASTIC_SIGNALS_TO_HANDLE"] = config.stop.signals_text;
  variables[environment::kLogDirectory] =
      place.log_directory.empty() ? std::nullopt : std::optional(place.log_directory);
  if (!value_in(inherited, environment::kAsyncErrorHandling)) variables[environment::kAsyncErrorHandling] = "1";
  // The cores we may use, shared fairly. One worker alone may use them all, as without a launcher.
  if (!value_in(inherited, environment::kOmpNumThreads) && place.local_world_size > 1) {
    variables[environment::kOmpNumThreads] = text(std::max(1, place.allowed_cores / place.local_world_size));
  }
  // What connects the nodes connects their workers, unless the user has decided.
  if (const auto& interface = config.rendezvous.interface) {
    if (!value_in(inherited, kGlooInterface)) variables[kGlooInterface] = *interface;
    if (!value_in(inherited, kNcclInterface)) variables[kNcclInterface] = "=" + *interface;  // not those that begin so
  }
  if (config.virtual_local_rank) show_one_device(variables, inherited, local_rank);

  std::vector<std::string> result;
  result.reserve(inherited.size() + variables.size());
  for (const auto& entry : inherited) {
    if (!variables.contains(std::string_view(entry).substr(0, entry.find('=')))) result.push_back(entry);
  }
  for (const auto& [name, value] : variables) {
    if (value) result.push_back(fmt::format("{}={}", name, *value));
  }
  return result;
}

std::vector<std::string> own_environment() {
  std::vector<std::string> list;
  for (char** entry = ::environ; entry != nullptr && *entry != nullptr; ++entry) list.emplace_back(*entry);
  return list;
}

}  // namespace dtrun::launcher
