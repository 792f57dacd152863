//! A mount namespace of its own for the calling thread, with a BPF file system
//! that vanishes with it.

use rustix::{
    mount::{MountFlags, MountPropagationFlags, mount, mount_change},
    thread::{UnshareFlags, unshare_unsafe},
};

/// Where the BPF file system is in the sandbox.
pub const BPF_FS: &str = "/sys/fs/bpf";

/// Moves the calling thread, and threads that it starts from now on, into a
/// new mount namespace with an empty BPF file system at [`BPF_FS`].
///
/// # Panics
/// Without the privilege to do so: these tests need root.
pub fn enter() {
    // SAFETY: only this thread's view of mounts and its working directory
    // change; file descriptors stay shared.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.expect("this test needs root");
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .expect("cannot make the mounts private");
    mount("bpf", BPF_FS, "bpf", MountFlags::empty(), None).expect("cannot mount bpffs");
}

/// Pins the calling thread to one CPU.
///
/// # Panics
/// If the machine has no such CPU.
pub fn pin_to_cpu(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).expect("no such CPU");
}
