//! One question to the kernel over netlink, and its answers.

use std::{fmt::Debug, io};

use netlink_packet_core::{
    NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload,
    NetlinkSerializable,
};
use netlink_sys::{Socket, SocketAddr};

/// Asks in this network namespace. One of the flags has to be `NLM_F_DUMP` or
/// `NLM_F_ACK`, so that the kernel says where the answers end.
///
/// # Errors
/// The kernel refuses, or its answer cannot be read.
pub(crate) fn request<M>(protocol: isize, flags: u16, question: M) -> io::Result<Vec<M>>
where
    M: NetlinkSerializable + NetlinkDeserializable + Debug,
{
    let socket = Socket::new(protocol)?;
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    let mut request = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(question));
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    socket.send_to(&bytes, &SocketAddr::new(0, 0), 0)?;

    let mut answers = Vec::new();
    loop {
        let (bytes, _) = socket.recv_from_full()?;
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let message = NetlinkMessage::<M>::deserialize(rest).map_err(io::Error::other)?;
            match message.payload {
                NetlinkPayload::Done(_) => return Ok(answers),
                // An error of 0 is an acknowledgement.
                NetlinkPayload::Error(error) if error.code.is_none() => return Ok(answers),
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                NetlinkPayload::InnerMessage(answer) => answers.push(answer),
                _ => {}
            }
            // Messages start at multiples of 4 bytes (NLMSG_ALIGN).
            let length = (message.header.length as usize).next_multiple_of(4);
            rest = rest.get(length.max(4)..).unwrap_or_default();
        }
    }
}
