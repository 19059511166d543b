// store_load: closed-loop load generator for any server that speaks the c10d TCPStore wire protocol.
// One thread, epoll, one outstanding request per connection. Implements the wire format itself
// (old = PyTorch <= 2.0 numbering, no handshake; new = VALIDATE + PING, 2.x numbering).
//
//   store_load --host 127.0.0.1 --port 29500 --proto new --op add --conns 64 --seconds 3
//
// --op  set      one SET + a zero-key CHECK as acknowledgement, both in one send (latency = round trip)
//       setburst 64 SETs pipelined + one zero-key CHECK (counts SETs; latency is per burst)
//       get      WAIT(key), await byte, then GET(key): what a real client's get() does (counted as 1 op)
//       getonly  GET alone
//       add      ADD on one shared counter
//       addown   ADD on a counter per connection
//       cas      COMPARE_SET on one shared key (read-modify-write loop)
//       check    CHECK of 1 key
//       ping     PING (new only)
//       connect  connect + handshake + ADD + close, repeatedly
//       barrier  N connections: connect, handshake, ADD init/, then ADD k, last one SETs k:last, all WAIT k:last
//       nbarrier N connections: the BARRIER command (new only, torch >= 2.11-ish servers)
//       mesh     N connections: SET own 170-byte value, then WAIT+GET of every other rank's (N^2 gets, as gloo does)
//       mget     one MULTI_GET of --keys keys per op (new only)
//       herd     N connections WAIT for one key, another SETs it: time from the SET to the last wake-up
//       wake     1 waiter + 1 setter connection: time from SET to the waiter's wake-up
// --idle K  keeps K extra handshaken idle connections open during the run
// --twoconns  (old) opens a second, silent connection per client, as 1.13 clients do
// --value N   value size (default 64);  --repeat R  repeats of barrier/mesh runs;  --json  one JSON line
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

using Clock = std::chrono::steady_clock;
static double now_s() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }
[[noreturn]] static void die(const std::string& m) {
  fprintf(stderr, "store_load: %s\n", m.c_str());
  exit(2);
}

enum Cmd { SET, CSET, GET, ADD, CHECK, WAIT, NUM, DEL, PING, MGET, MSET, BARRIER, CANCEL };
static bool g_new = true;
static uint8_t code(Cmd c) {
  if (g_new) switch (c) {
      case SET:
        return 1;
      case CSET:
        return 2;
      case GET:
        return 3;
      case ADD:
        return 4;
      case CHECK:
        return 5;
      case WAIT:
        return 6;
      case NUM:
        return 7;
      case DEL:
        return 8;
      case MGET:
        return 10;
      case MSET:
        return 11;
      case CANCEL:
        return 12;
      case PING:
        return 13;
      case BARRIER:
        return 18;
    }
  switch (c) {
    case SET:
      return 0;
    case CSET:
      return 1;
    case GET:
      return 2;
    case ADD:
      return 3;
    case CHECK:
      return 4;
    case WAIT:
      return 5;
    case NUM:
      return 6;
    case DEL:
      return 8;
    default:
      die("that command does not exist in the old protocol");
  }
}
struct Out {
  std::string b;
  Out& cmd(Cmd c) {
    b.push_back(char(code(c)));
    return *this;
  }
  template <class T>
  Out& raw(T v) {
    b.append(reinterpret_cast<const char*>(&v), sizeof v);
    return *this;
  }  // little-endian host assumed
  Out& str(const std::string& s) {
    raw<uint64_t>(s.size());
    b += s;
    return *this;
  }
};
static std::string key(const std::string& k) { return "/" + k; }
static std::string hello(uint32_t nonce) {
  Out o;
  o.raw<uint8_t>(0).raw<uint32_t>(0x3C85F7CEu);
  o.cmd(PING).raw<uint32_t>(nonce);
  return o.b;
}

static std::string host = "127.0.0.1";
static int port = 29500;
static sockaddr_storage g_sa;
static socklen_t g_sl;
static void resolve() {
  addrinfo h{}, *r = nullptr;
  h.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &h, &r) || !r) die("cannot resolve " + host);
  memcpy(&g_sa, r->ai_addr, r->ai_addrlen);
  g_sl = r->ai_addrlen;
  freeaddrinfo(r);
}
// Blocking connect with retry on refusal/reset (up to 20 s), then non-blocking + TCP_NODELAY.
static int dial() {
  double end = now_s() + 20;
  for (;;) {
    int fd = socket(g_sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) die(std::string("socket: ") + strerror(errno));
    if (connect(fd, reinterpret_cast<sockaddr*>(&g_sa), g_sl) == 0) {
      int one = 1;
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
      fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
      return fd;
    }
    int e = errno;
    close(fd);
    if (now_s() > end || (e != ECONNREFUSED && e != ECONNRESET && e != ETIMEDOUT))
      die(std::string("connect: ") + strerror(e));
    usleep(20000);
  }
}
static void abort_close(int fd) {
  linger l{1, 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
  close(fd);
}

struct Conn {
  int fd = -1;
  int id = 0;
  std::string out;
  std::string in;
  double t0 = 0;
  int step = 0;
  int64_t a = 0;
  bool wr = false;
  std::function<void(Conn&)> on;  // called whenever bytes arrived; consumes from in
};
static int ep = -1;
static void arm(Conn& c) {
  bool want = !c.out.empty();
  if (want == c.wr) return;
  epoll_event e{};
  e.events = EPOLLIN;
  if (want) e.events |= EPOLLOUT;
  e.data.ptr = &c;
  epoll_ctl(ep, EPOLL_CTL_MOD, c.fd, &e);
  c.wr = want;
}
static void flush(Conn& c) {
  while (!c.out.empty()) {
    ssize_t n = send(c.fd, c.out.data(), c.out.size(), MSG_NOSIGNAL);
    if (n < 0) {
      if (errno == EAGAIN) break;
      die(std::string("send: ") + strerror(errno));
    }
    c.out.erase(0, size_t(n));
  }
  arm(c);
}
static void put(Conn& c, const std::string& b) {
  c.out += b;
  flush(c);
}
static bool take(Conn& c, size_t n, std::string& v) {
  if (c.in.size() < n) return false;
  v = c.in.substr(0, n);
  c.in.erase(0, n);
  return true;
}
static bool take_i64(Conn& c, int64_t& v) {
  std::string s;
  if (!take(c, 8, s)) return false;
  memcpy(&v, s.data(), 8);
  return true;
}
static bool take_u8(Conn& c, uint8_t& v) {
  if (c.in.empty()) return false;
  v = uint8_t(c.in[0]);
  c.in.erase(0, 1);
  return true;
}
static bool take_vec(Conn& c, std::string& v) {
  if (c.in.size() < 8) return false;
  uint64_t n;
  memcpy(&n, c.in.data(), 8);
  if (n > (1u << 30)) die("absurd length in an answer");
  if (c.in.size() < 8 + n) return false;
  v = c.in.substr(8, n);
  c.in.erase(0, 8 + n);
  return true;
}
static void reg(Conn& c) {
  epoll_event e{};
  e.events = EPOLLIN;
  e.data.ptr = &c;
  if (epoll_ctl(ep, EPOLL_CTL_ADD, c.fd, &e)) die("epoll_ctl");
}
static void pump(int timeout_ms) {
  epoll_event ev[256];
  int n = epoll_wait(ep, ev, 256, timeout_ms);
  static thread_local std::vector<char> buf(1 << 18);
  for (int i = 0; i < n; ++i) {
    Conn& c = *static_cast<Conn*>(ev[i].data.ptr);
    if (ev[i].events & EPOLLOUT) flush(c);
    if (ev[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
      ssize_t r = recv(c.fd, buf.data(), buf.size(), 0);
      if (r == 0) die("server closed connection " + std::to_string(c.id));
      if (r < 0) {
        if (errno == EAGAIN) continue;
        die(std::string("recv: ") + strerror(errno));
      }
      c.in.append(buf.data(), size_t(r));
      c.on(c);
    }
  }
}
// blocking helpers for setup
static void wait_bytes(Conn& c, size_t n) {
  double end = now_s() + 60;
  while (c.in.size() < n) {
    auto keep = c.on;
    c.on = [](Conn&) {};
    pump(100);
    c.on = keep;
    if (now_s() > end) die("set-up answer did not come within 60 s");
  }
}
static std::unique_ptr<Conn> open_conn(int id, bool handshake_wait = true) {
  auto c = std::make_unique<Conn>();
  c->fd = dial();
  c->id = id;
  c->on = [](Conn&) {};
  reg(*c);
  if (g_new) {
    put(*c, hello(uint32_t(id)));
    if (handshake_wait) {
      wait_bytes(*c, 4);
      c->in.erase(0, 4);
    }
  }
  return c;
}

struct Stats {
  std::vector<float> us;
  uint64_t ops = 0;
  double secs = 0;
  void add(double s) {
    if (us.size() < 8000000) us.push_back(float(s * 1e6));
  }
  double pct(double p) {
    if (us.empty()) return 0;
    size_t k = std::min(us.size() - 1, size_t(p * double(us.size())));
    std::nth_element(us.begin(), us.begin() + k, us.end());
    return us[k];
  }
};

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  std::string op = "add";
  int conns = 1, idle = 0, vsize = 64, repeat = 1, nkeys = 64;
  double secs = 3;
  bool json = false, two = false;
  for (int i = 1; i < argc; ++i) {
    std::string a = argv[i];
    auto v = [&] {
      if (++i >= argc) die("value missing after " + a);
      return std::string(argv[i]);
    };
    if (a == "--host")
      host = v();
    else if (a == "--port")
      port = stoi(v());
    else if (a == "--op")
      op = v();
    else if (a == "--conns")
      conns = stoi(v());
    else if (a == "--seconds")
      secs = stod(v());
    else if (a == "--idle")
      idle = stoi(v());
    else if (a == "--value")
      vsize = stoi(v());
    else if (a == "--repeat")
      repeat = stoi(v());
    else if (a == "--keys")
      nkeys = stoi(v());
    else if (a == "--json")
      json = true;
    else if (a == "--twoconns")
      two = true;
    else if (a == "--proto") {
      std::string p = v();
      if (p != "old" && p != "new") die("--proto old|new");
      g_new = p == "new";
    } else
      die("unknown option " + a);
  }
  rlimit rl;
  getrlimit(RLIMIT_NOFILE, &rl);
  rl.rlim_cur = rl.rlim_max;
  setrlimit(RLIMIT_NOFILE, &rl);
  resolve();
  ep = epoll_create1(EPOLL_CLOEXEC);
  Stats st;
  std::string tag = "b" + std::to_string(getpid()) + "_" + std::to_string(uint64_t(now_s() * 1e6) % 1000000);
  std::vector<std::unique_ptr<Conn>> idles;
  std::vector<int> silent;
  for (int i = 0; i < idle; ++i) idles.push_back(open_conn(900000 + i));
  std::string val(size_t(vsize), 'v');
  std::string zero_check = Out().cmd(CHECK).raw<uint64_t>(0).b;

  auto closed_loop = [&](std::function<void(Conn&)> start, std::function<bool(Conn&)> done, int per_op) {
    std::vector<std::unique_ptr<Conn>> cs;
    double end = 0;
    bool stop = false;
    int live = 0;
    for (int i = 0; i < conns; ++i) cs.push_back(open_conn(i));
    if (two)
      for (int i = 0; i < conns; ++i) silent.push_back(dial());
    for (auto& c : cs)
      c->on = [&](Conn& k) {
        while (done(k)) {
          st.add(now_s() - k.t0);
          st.ops += uint64_t(per_op);
          if (now_s() >= end) {
            stop = true;
            --live;
            break;
          }
          k.t0 = now_s();
          start(k);
          if (k.in.empty()) break;
        }
      };
    double t = now_s();
    end = t + secs;
    live = conns;
    for (auto& c : cs) {
      c->t0 = now_s();
      start(*c);
    }
    while (live > 0) {
      pump(200);
      if (now_s() > end + 60) die("stalled: an answer did not come within 60 s");
    }
    (void)stop;
    st.secs = now_s() - t;
    for (auto& c : cs) close(c->fd);
  };

  {  // seed keys
    auto c = open_conn(-1);
    put(*c, Out().cmd(SET).str(key(tag + "k")).str(val).b + Out().cmd(SET).str(key(tag + "cs")).str("0").b);
    if (op == "mget")
      for (int i = 0; i < nkeys; ++i) put(*c, Out().cmd(SET).str(key(tag + "m" + std::to_string(i))).str(val).b);
    put(*c, zero_check);
    wait_bytes(*c, 1);
    close(c->fd);
  }
  uint8_t b;
  int64_t n;
  std::string s;
  if (op == "set") {
    std::string r = Out().cmd(SET).str(key(tag + "k")).str(val).b + zero_check;
    closed_loop([&](Conn& c) { put(c, r); }, [&](Conn& c) { return take_u8(c, b); }, 1);
  } else if (op == "setburst") {
    std::string r;
    for (int i = 0; i < 64; ++i) r += Out().cmd(SET).str(key(tag + "k" + std::to_string(i))).str(val).b;
    r += zero_check;
    closed_loop([&](Conn& c) { put(c, r); }, [&](Conn& c) { return take_u8(c, b); }, 64);
  } else if (op == "getonly") {
    std::string r = Out().cmd(GET).str(key(tag + "k")).b;
    closed_loop([&](Conn& c) { put(c, r); }, [&](Conn& c) { return take_vec(c, s); }, 1);
  } else if (op == "get") {
    std::string w = Out().cmd(WAIT).raw<uint64_t>(1).str(key(tag + "k")).b, r = Out().cmd(GET).str(key(tag + "k")).b;
    closed_loop(
        [&](Conn& c) {
          c.step = 0;
          put(c, w);
        },
        [&](Conn& c) {
          if (c.step == 0) {
            if (!take_u8(c, b)) return false;
            if (b) die("WAIT answered " + std::to_string(b));
            c.step = 1;
            put(c, r);
          }
          return take_vec(c, s);
        },
        1);
  } else if (op == "add" || op == "addown") {
    closed_loop(
        [&](Conn& c) {
          put(c, Out()
                     .cmd(ADD)
                     .str(key(tag + "ctr" + (op == "addown" ? std::to_string(c.id) : std::string())))
                     .raw<int64_t>(1)
                     .b);
        },
        [&](Conn& c) { return take_i64(c, n); }, 1);
    auto c = open_conn(-2);
    if (op == "add") {
      put(*c, Out().cmd(ADD).str(key(tag + "ctr")).raw<int64_t>(0).b);
      wait_bytes(*c, 8);
      take_i64(*c, n);
      if (uint64_t(n) != st.ops) die("counter " + std::to_string(n) + " != ops " + std::to_string(st.ops));
    }
    close(c->fd);
  } else if (op == "cas") {  // each connection proposes seen -> seen+1; counted whether it won or not
    std::vector<std::string> seen(size_t(conns), "0");
    closed_loop(
        [&](Conn& c) {
          auto& z = seen[size_t(c.id)];
          put(c, Out().cmd(CSET).str(key(tag + "cs")).str(z).str(std::to_string(atoll(z.c_str()) + 1)).b);
        },
        [&](Conn& c) {
          if (!take_vec(c, s)) return false;
          seen[size_t(c.id)] = s;
          return true;
        },
        1);
  } else if (op == "check") {
    std::string r = Out().cmd(CHECK).raw<uint64_t>(1).str(key(tag + "k")).b;
    closed_loop([&](Conn& c) { put(c, r); }, [&](Conn& c) { return take_u8(c, b); }, 1);
  } else if (op == "ping") {
    std::string r = Out().cmd(PING).raw<uint32_t>(7).b;
    closed_loop([&](Conn& c) { put(c, r); }, [&](Conn& c) { return take(c, 4, s); }, 1);
  } else if (op == "mget") {
    Out o;
    o.cmd(MGET).raw<uint64_t>(uint64_t(nkeys));
    for (int i = 0; i < nkeys; ++i) o.str(key(tag + "m" + std::to_string(i)));
    closed_loop(
        [&](Conn& c) {
          c.step = 0;
          put(c, o.b);
        },
        [&](Conn& c) {
          while (c.step < nkeys && take_vec(c, s)) ++c.step;
          return c.step == nkeys;
        },
        1);
  } else if (op == "connect") {
    double t = now_s(), end = t + secs;
    std::string r = Out().cmd(ADD).str("init/").raw<int64_t>(1).b;
    while (now_s() < end) {
      double t1 = now_s();
      auto c = open_conn(1, false);
      put(*c, r);
      size_t need = g_new ? 12 : 8;
      wait_bytes(*c, need);
      int f2 = two ? dial() : -1;
      abort_close(c->fd);
      if (f2 >= 0) abort_close(f2);
      st.add(now_s() - t1);
      ++st.ops;
    }
    st.secs = now_s() - t;
  } else if (op == "barrier" || op == "nbarrier") {
    double total = 0;
    for (int rep = 0; rep < repeat; ++rep) {
      std::string k = key("default_pg/store_based_barrier_key:" + tag + std::to_string(rep));
      std::vector<std::unique_ptr<Conn>> cs;
      int left = conns;
      double t = now_s();
      std::string init = Out().cmd(ADD).str("init/").raw<int64_t>(1).b, add = Out().cmd(ADD).str(k).raw<int64_t>(1).b,
                  wait = Out().cmd(WAIT).raw<uint64_t>(1).str(k + ":last_worker").b, nb;
      if (op == "nbarrier") nb = Out().cmd(BARRIER).str(k).raw<int64_t>(conns).b;
      for (int i = 0; i < conns; ++i) {
        auto c = open_conn(i, false);
        c->t0 = now_s();
        c->step = g_new ? 0 : 1;
        if (two) silent.push_back(dial());
        c->on = [&](Conn& q) {
          for (;;) {
            if (q.step == 0) {
              if (!take(q, 4, s)) return;
              q.step = 1;
            } else if (q.step == 1) {
              if (!take_i64(q, n)) return;
              q.step = 2;
              put(q, op == "nbarrier" ? nb : add);
              if (op == "nbarrier") q.step = 3;
            } else if (q.step == 2) {
              if (!take_i64(q, n)) return;
              q.step = 3;
              std::string o;
              if (n == conns) o = Out().cmd(SET).str(k + ":last_worker").str("1").b;
              put(q, o + wait);
            } else if (q.step == 3) {
              if (!take_u8(q, b)) return;
              q.step = 4;
              --left;
              st.add(now_s() - q.t0);
              return;
            } else
              return;
          }
        };
        put(*c, init);
        cs.push_back(std::move(c));
        pump(0);
      }
      while (left > 0) {
        pump(200);
        if (now_s() > t + 120) die("barrier stuck, left " + std::to_string(left));
      }
      total += now_s() - t;
      ++st.ops;
      for (auto& c : cs) abort_close(c->fd);
      for (int f : silent) close(f);
      silent.clear();
      usleep(50000);
    }
    st.secs = total;
  } else if (op == "mesh") {
    double total = 0;
    std::string blob(170, 'm');
    for (int rep = 0; rep < repeat; ++rep) {
      std::string pre = key(tag + std::to_string(rep) + "/0//cpu//0/");
      std::vector<std::unique_ptr<Conn>> cs;
      int left = conns;
      for (int i = 0; i < conns; ++i) cs.push_back(open_conn(i));
      double t = now_s();
      auto next = [&](Conn& q) {
        if (q.a == q.id) ++q.a;
        if (q.a >= conns) {
          --left;
          q.step = 9;
          return;
        }
        q.step = 0;
        q.t0 = now_s();
        put(q, Out().cmd(WAIT).raw<uint64_t>(1).str(pre + std::to_string(q.a)).b);
      };
      for (auto& c : cs)
        c->on = [&](Conn& q) {
          for (;;) {
            if (q.step == 0) {
              if (!take_u8(q, b)) return;
              q.step = 1;
              put(q, Out().cmd(GET).str(pre + std::to_string(q.a)).b);
            } else if (q.step == 1) {
              if (!take_vec(q, s)) return;
              if (s.size() != 170) die("mesh value has wrong size");
              st.add(now_s() - q.t0);
              ++st.ops;
              ++q.a;
              next(q);
            } else
              return;
          }
        };
      for (auto& c : cs) {
        put(*c, Out().cmd(SET).str(pre + std::to_string(c->id)).str(blob).b);
        c->a = 0;
        next(*c);
      }
      while (left > 0) {
        pump(200);
        if (now_s() > t + 300) die("mesh stuck");
      }
      total += now_s() - t;
      for (auto& c : cs) close(c->fd);
    }
    st.secs = total;
  } else if (op == "herd") {
    for (int rep = 0; rep < repeat; ++rep) {
      std::string k = key(tag + "h" + std::to_string(rep));
      std::vector<std::unique_ptr<Conn>> cs;
      int left = conns;
      for (int i = 0; i < conns; ++i) {
        cs.push_back(open_conn(i));
        cs.back()->on = [&](Conn& q) {
          uint8_t x;
          if (take_u8(q, x)) --left;
        };
        put(*cs.back(), Out().cmd(WAIT).raw<uint64_t>(1).str(k).b);
      }
      auto c = open_conn(-3);
      usleep(100000);
      double t1 = now_s();
      put(*c, Out().cmd(SET).str(k).str("1").b);
      while (left > 0) {
        pump(1000);
        if (now_s() > t1 + 60) die("lost wake-ups: " + std::to_string(left));
      }
      st.add(now_s() - t1);
      ++st.ops;
      st.secs += now_s() - t1;
      for (auto& q : cs) close(q->fd);
      close(c->fd);
    }
  } else if (op == "wake") {
    auto w = open_conn(1), c = open_conn(2);
    double t = now_s(), end = t + secs;
    int i = 0;
    bool woke = false;
    w->on = [&](Conn& q) {
      uint8_t x;
      if (take_u8(q, x)) woke = true;
    };
    while (now_s() < end) {
      std::string k = key(tag + "w" + std::to_string(i++));
      woke = false;
      put(*w, Out().cmd(WAIT).raw<uint64_t>(1).str(k).b);
      usleep(300);
      double t1 = now_s();
      put(*c, Out().cmd(SET).str(k).str("1").b);
      while (!woke) pump(1000);
      st.add(now_s() - t1);
      ++st.ops;
    }
    st.secs = now_s() - t;
  } else
    die("unknown --op " + op);
  double p50 = st.pct(.5), p99 = st.pct(.99), p999 = st.pct(.999),
         mx = st.us.empty() ? 0 : *std::max_element(st.us.begin(), st.us.end());
  if (json)
    printf(
        "{\"op\":\"%s\",\"proto\":\"%s\",\"conns\":%d,\"idle\":%d,\"ops\":%llu,\"secs\":%.4f,\"ops_per_s\":%.1f,\"p50_"
        "us\":%.1f,\"p99_us\":%.1f,\"p999_us\":%.1f,\"max_us\":%.1f}\n",
        op.c_str(), g_new ? "new" : "old", conns, idle, (unsigned long long)st.ops, st.secs, double(st.ops) / st.secs,
        p50, p99, p999, mx);
  else
    printf(
        "%-9s %s conns=%-4d idle=%-5d ops=%-9llu %.3fs  %10.0f ops/s  p50 %.1f us  p99 %.1f us  p99.9 %.1f us  max "
        "%.1f us\n",
        op.c_str(), g_new ? "new" : "old", conns, idle, (unsigned long long)st.ops, st.secs, double(st.ops) / st.secs,
        p50, p99, p999, mx);
  return 0;
}
