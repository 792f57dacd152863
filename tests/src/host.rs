//! Hosts without names: network and mount namespaces that are held by file
//! descriptors of this process only. When it ends, however it ends, they are
//! gone, with every device, pin, socket and process in them.

use std::{
    fs::File,
    io,
    os::{fd::AsFd as _, unix::process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Output},
    sync::Arc,
    thread,
};

use rustix::{
    mount::{MountFlags, MountPropagationFlags, mount, mount_change},
    process::Signal,
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe},
};

use crate::net::IFACE;

/// A host of its own: its network, its /sys, its /run, its BPF file system.
#[derive(Clone)]
pub struct Host(Arc<NameSpaces>);

struct NameSpaces {
    network: File,
    mounts: File,
}

impl Host {
    /// A new host with nothing but a loopback interface, which is up.
    ///
    /// # Panics
    /// Without root.
    #[must_use]
    pub fn new() -> Self {
        let made = thread::spawn(make).join();
        let host = Self(Arc::new(made.unwrap_or_else(|panic| std::panic::resume_unwind(panic))));
        host.ip("link set lo up");
        // Nothing that the kernel would send by itself: the tests count.
        for (key, value) in [
            ("net/ipv6/conf/all/accept_dad", "0"),
            ("net/ipv6/conf/default/accept_dad", "0"),
            ("net/ipv6/conf/default/router_solicitations", "0"),
            ("net/ipv6/conf/default/addr_gen_mode", "1"),
        ] {
            host.sysctl(key, value);
        }
        host
    }

    /// A command that will run on this host, and not outlive this process.
    #[must_use]
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        let spaces = Arc::clone(&self.0);
        // SAFETY: between fork and exec only system calls are made.
        unsafe {
            command.pre_exec(move || {
                rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
                spaces.enter()
            });
        }
        command
    }

    /// Runs a command line on this host to its end.
    ///
    /// # Panics
    /// If it cannot be started (the message names the program) or fails.
    pub fn run(&self, line: &str) -> Output {
        let output = self.try_run(line);
        assert!(
            output.status.success(),
            "{line}: {}\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        output
    }

    /// Runs a command line on this host to its end, successful or not.
    ///
    /// # Panics
    /// If it cannot be started; the message names the program.
    #[must_use]
    pub fn try_run(&self, line: &str) -> Output {
        let mut words = line.split_whitespace();
        let program = words.next().expect("a program");
        let output = self.command(program).args(words).output();
        output.unwrap_or_else(|error| panic!("{program} cannot be started: {error}"))
    }

    /// Runs `ip` with these arguments.
    pub fn ip(&self, arguments: &str) {
        self.run(&format!("ip {arguments}"));
    }

    /// Sets a kernel parameter of this host's network.
    ///
    /// # Panics
    /// If there is none of that name.
    pub fn sysctl(&self, key: &str, value: &str) {
        let path = Path::new("/proc/sys").join(key);
        let value = value.to_owned();
        let write = move || std::fs::write(path, value);
        self.call(write).unwrap_or_else(|error| panic!("{key}: {error}"));
    }

    /// Calls a function in a thread on this host and waits for it.
    ///
    /// # Panics
    /// If the function does.
    pub fn call<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let result = self.spawn(work).join();
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Starts a thread on this host.
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> thread::JoinHandle<T> {
        let spaces = Arc::clone(&self.0);
        thread::spawn(move || {
            // SAFETY: this thread alone stops sharing its directories.
            unsafe { unshare_unsafe(UnshareFlags::FS) }.expect("unshare");
            spaces.enter().expect("entering a host");
            work()
        })
    }

    /// Adds a pair of interfaces between this host and another, both up, each
    /// with two queues, and static neighbours so that neither asks for the
    /// other. Addresses are given as `address/length`.
    pub fn connect(&self, name: &str, other: &Self, other_name: &str) {
        // Made on a host of its own, so that no name is in the way.
        let between = Self::new();
        between.ip("link add name left numtxqueues 2 numrxqueues 2 type veth peer name right numtxqueues 2 numrxqueues 2");
        for (end, host, name) in [("left", self, name), ("right", other, other_name)] {
            between.move_link(end, host);
            host.ip(&format!("link set {end} name {name}"));
            host.sysctl(&format!("net/ipv6/conf/{name}/addr_gen_mode"), "1");
            host.ip(&format!("link set {name} up"));
        }
    }

    fn move_link(&self, link: &str, to: &Self) {
        // `ip` takes a process or a name; the descriptor has a name under
        // /proc for as long as it is open.
        use std::os::fd::AsRawFd as _;
        let path = format!("/proc/{}/fd/{}", std::process::id(), to.0.network.as_raw_fd());
        self.ip(&format!("link set {link} netns {path}"));
    }

    /// Packets that an interface of this host has sent and received.
    ///
    /// # Panics
    /// If there is no such interface.
    #[must_use]
    pub fn packets(&self, interface: &str) -> Packets {
        let read = |counter: &str| {
            let path = format!("/sys/class/net/{interface}/statistics/{counter}");
            let text = self.call(move || std::fs::read_to_string(path));
            text.expect("statistics").trim().parse().expect("a number")
        };
        Packets {
            sent: read("tx_packets"),
            received: read("rx_packets"),
            unsent: read("tx_dropped"),
        }
    }

    /// A host with one interface, [`IFACE`], that leads to another host.
    ///
    /// # Panics
    /// Without root.
    #[must_use]
    pub fn pair() -> (Self, Self) {
        let (host, other) = (Self::new(), Self::new());
        host.connect(IFACE, &other, IFACE);
        (host, other)
    }

    /// What is pinned, attached, and left in `/run` on this host.
    ///
    /// # Panics
    /// If it cannot be listed.
    #[must_use]
    pub fn left_over(&self) -> String {
        let find = "find /sys/fs/bpf /run -mindepth 1 -not -name *.debug";
        let files = text(&self.try_run(find).stdout);
        let links = text(&self.run("ip -d link").stdout);
        if links.contains("prog/xdp") { files + &links } else { files }
    }

    /// IPv4 UDP datagrams that reached this host's stack, wanted or not.
    ///
    /// # Panics
    /// If the kernel does not count them.
    #[must_use]
    pub fn datagrams(&self) -> u64 {
        let text = self.call(|| std::fs::read_to_string("/proc/thread-self/net/snmp"));
        let text = text.expect("counters");
        let line = text.lines().filter(|line| line.starts_with("Udp:")).nth(1).expect("values");
        // Received, without a port, in error.
        let values = line.split(' ').skip(1).take(3);
        values.map(|value| value.parse::<u64>().expect("a number")).sum()
    }

    /// The hardware address of an interface.
    ///
    /// # Panics
    /// If there is no such interface.
    #[must_use]
    pub fn hardware_address(&self, interface: &str) -> [u8; 6] {
        let path = format!("/sys/class/net/{interface}/address");
        let text = self.call(move || std::fs::read_to_string(path)).expect("an address");
        let bytes: Vec<_> = text
            .trim()
            .split(':')
            .map(|byte| u8::from_str_radix(byte, 16).expect("hexadecimal"))
            .collect();
        bytes.try_into().expect("six bytes")
    }
}

impl Default for Host {
    fn default() -> Self {
        Self::new()
    }
}

/// Packets of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packets {
    /// Those it sent.
    pub sent: u64,
    /// Those it received.
    pub received: u64,
    /// Those it dropped instead of sending them.
    pub unsent: u64,
}

impl NameSpaces {
    fn enter(&self) -> io::Result<()> {
        move_into_link_name_space(self.mounts.as_fd(), Some(LinkNameSpaceType::Mount))?;
        move_into_link_name_space(self.network.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(())
    }
}

fn make() -> NameSpaces {
    // SAFETY: only this thread's view of mounts and network changes, and it
    // ends when it has opened the new ones; descriptors stay shared.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::NEWNET) }.expect("this needs root");
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .expect("private mounts");
    for (kind, place) in
        [("sysfs", "/sys"), ("bpf", "/sys/fs/bpf"), ("tmpfs", "/run"), ("tmpfs", "/var/lib")]
    {
        mount(kind, place, kind, MountFlags::empty(), None)
            .unwrap_or_else(|error| panic!("mounting {place}: {error}"));
    }
    NameSpaces {
        network: File::open("/proc/thread-self/ns/net").expect("the network namespace"),
        mounts: File::open("/proc/thread-self/ns/mnt").expect("the mount namespace"),
    }
}

/// A process that is killed, and waited for, when it goes out of scope.
pub struct Running(Option<Child>);

impl Running {
    /// Starts a command.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start(command: &mut Command) -> Self {
        Self(Some(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"))))
    }

    /// Its process.
    ///
    /// # Panics
    /// Never: it is there until [`Running::wait`] takes it.
    pub fn child(&mut self) -> &mut Child {
        self.0.as_mut().expect("the process")
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// If it is gone.
    pub fn signal(&mut self, signal: Signal) {
        let pid = rustix::process::Pid::from_child(self.child());
        rustix::process::kill_process(pid, signal).expect("the process is there");
    }

    /// Waits for its end and for what it printed.
    ///
    /// # Panics
    /// If the kernel refuses.
    #[must_use]
    pub fn wait(mut self) -> Output {
        self.0.take().expect("the process").wait_with_output().expect("waiting")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A release binary of this build.
///
/// # Panics
/// If it has not been built.
#[must_use]
pub fn binary(name: &str) -> PathBuf {
    let executable = std::env::current_exe().expect("this executable");
    let path = executable
        .ancestors()
        .map(|directory| directory.join("release").join(name))
        .find(|path| path.is_file());
    path.unwrap_or_else(|| panic!("{name} has not been built: cargo xtask build"))
}

/// What a program has printed.
#[must_use]
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What a program has printed on standard error.
#[must_use]
pub fn stderr(output: &Output) -> String {
    text(&output.stderr)
}
