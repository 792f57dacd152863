//! A generator of frames: so many, at such a pace, and no more.

use std::{
    ffi::CString,
    io,
    mem::MaybeUninit,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
    time::{Duration, Instant},
};

/// Frames handed to the kernel at once.
const BATCH: usize = 32;
/// No generator runs longer, whatever it was asked for.
const MOST_TIME: Duration = Duration::from_secs(60);

/// What to send.
#[derive(Clone, Debug)]
pub struct Load {
    /// The frames, sent in turn.
    pub frames: Vec<Vec<u8>>,
    /// How many.
    pub count: u64,
    /// How many per second.
    pub per_second: u64,
}

/// What was sent.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// Frames that the kernel took.
    pub frames: u64,
    /// From the first to the last.
    pub time: Duration,
}

/// Sends from the calling thread's network namespace until the load is sent or
/// `stop` says so.
///
/// # Errors
/// No such interface, no privilege, or the interface goes away.
pub fn send(interface: &str, load: &Load, stop: impl Fn() -> bool) -> io::Result<Sent> {
    let socket = open(interface)?;
    let start = Instant::now();
    // Those that were dropped at once have had their time, too.
    let (mut frames, mut dropped) = (0, 0);
    let mut turn = load.frames.iter().cycle();
    while frames < load.count && start.elapsed() < MOST_TIME && !stop() {
        // Behind the pace by as many as are due now.
        let due = start.elapsed().as_micros() * u128::from(load.per_second) / 1_000_000 + 1;
        let due = u64::try_from(due).unwrap_or(u64::MAX).saturating_sub(frames + dropped);
        let due = due.min(load.count - frames);
        if due == 0 {
            std::thread::sleep(Duration::from_micros(200));
            continue;
        }
        let batch = usize::try_from(due).unwrap_or(BATCH).min(BATCH);
        let taken = send_batch(&socket, turn.by_ref().take(batch))?;
        dropped += u64::from(taken < batch as u64);
        frames += taken;
    }
    Ok(Sent { frames, time: start.elapsed() })
}

fn open(interface: &str) -> io::Result<OwnedFd> {
    // SAFETY: takes three integers.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made, and owned by nobody else.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // Frames that wait in a queue further on must not hold the sender back.
    let room: libc::c_int = 64 << 20;
    let length = u32::try_from(size_of_val(&room)).map_err(io::Error::other)?;
    // SAFETY: an integer of the stated length.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_SNDBUFFORCE,
            (&raw const room).cast(),
            length,
        )
    };
    if set != 0 {
        return Err(io::Error::last_os_error());
    }
    let name = CString::new(interface)?;
    // SAFETY: a string that ends in a zero.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: integers and an array of them; all zero is a value.
    let mut address: libc::sockaddr_ll = unsafe { MaybeUninit::zeroed().assume_init() };
    address.sll_family = u16::try_from(libc::AF_PACKET).map_err(io::Error::other)?;
    address.sll_ifindex = i32::try_from(index).map_err(io::Error::other)?;
    let length = u32::try_from(size_of_val(&address)).map_err(io::Error::other)?;
    // SAFETY: an address of the stated length.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    if bound != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}

/// Sends these frames, at most [`BATCH`]; says how many the kernel took.
fn send_batch<'a>(socket: &OwnedFd, frames: impl Iterator<Item = &'a Vec<u8>>) -> io::Result<u64> {
    let mut bytes: Vec<_> = frames
        .take(BATCH)
        .map(|frame| libc::iovec {
            iov_base: frame.as_ptr().cast_mut().cast(),
            iov_len: frame.len(),
        })
        .collect();
    // SAFETY: integers and pointers; all zero is a value.
    let mut messages: [libc::mmsghdr; BATCH] = unsafe { MaybeUninit::zeroed().assume_init() };
    for (message, bytes) in messages.iter_mut().zip(&mut bytes) {
        message.msg_hdr.msg_iov = bytes;
        message.msg_hdr.msg_iovlen = 1;
    }
    let count = u32::try_from(bytes.len()).unwrap_or(0);
    // SAFETY: the messages and what they point to outlive the call, which only
    // reads the frames.
    let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), count, 0) };
    match u64::try_from(sent) {
        Ok(sent) => Ok(sent),
        Err(_) => match io::Error::last_os_error() {
            // The queue is full: as a flood does, we try again.
            error if error.raw_os_error() == Some(libc::ENOBUFS) => Ok(0),
            error => Err(error),
        },
    }
}
