//! Sampled packets as a file that Wireshark and tshark read.

use std::{
    borrow::Cow,
    fs::OpenOptions,
    io::{self, BufWriter, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::{Duration, UNIX_EPOCH},
};

use data_encoding::HEXLOWER;
use limiter_user::{
    api::{Event, EventsQuery, SampledPacket, What},
    client::Client,
    error::{Error, Kind, Result},
};
use pcap_file::{
    DataLink, Endianness, PcapError,
    pcapng::{
        PcapNgWriter,
        blocks::{
            enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption},
            interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption},
            section_header::{SectionHeaderBlock, SectionHeaderOption},
        },
    },
};
use tokio::time::{Instant, sleep, timeout_at};

use crate::{
    events::{Which, patiently},
    text::plain,
};

/// Time between two questions.
const PACE: Duration = Duration::from_millis(500);
/// Packets in an answer, some 600 bytes each.
const MOST: usize = 4000;
/// First bytes of a packet, as many as are sampled.
const SNAP_LENGTH: u32 = 256;
/// The unit of times is 10^-9 s.
const NANOSECONDS: u8 = 9;

/// What is written, and where to.
#[derive(clap::Args)]
pub(crate) struct Capture {
    /// The file, or - for standard output
    #[arg(short, long, value_name = "FILE")]
    write: PathBuf,
    /// End after so many packets
    #[arg(short = 'n', long, value_name = "N")]
    count: Option<usize>,
    /// End after so many seconds
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: Option<u64>,
    /// Even if the file exists
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    which: Which,
}

impl Capture {
    pub(crate) async fn run(self, client: &Client) -> Result<()> {
        let mut query = EventsQuery { bytes: true, limit: Some(1), ..self.which.into() };
        // Only what comes from now on; and what is wrong with the question is
        // said before there is a file.
        query.after = Some(client.events(&query).await?.next);
        query.limit = Some(MOST);
        let mut file = File::create(&self.write, self.force)?;
        let end = Instant::now() + Duration::from_secs(self.seconds.unwrap_or(u64::from(u32::MAX)));
        let count = self.count.unwrap_or(usize::MAX);
        let mut missed = 0;
        while file.packets < count && Instant::now() < end {
            let pause = sleep(PACE.min(end - Instant::now()));
            let asked = timeout_at(end + PACE, async {
                pause.await;
                patiently(client, &query).await
            });
            let events = tokio::select! {
                answer = asked => match answer {
                    Ok(events) => events?,
                    Err(_) => break,
                },
                _ = tokio::signal::ctrl_c() => break,
            };
            query.after = Some(events.next);
            missed += events.missed;
            let left = count - file.packets;
            for Event { time, what, .. } in events.events.iter().take(left) {
                if let What::Packet(packet) = what {
                    file.add(time, packet)?;
                }
            }
            file.flush()?;
        }
        let missed = match missed {
            0 => String::new(),
            missed => format!("; at least {missed} more came too fast"),
        };
        // Not to standard output, which may be the file.
        let _ = writeln!(io::stderr(), "{} packets written{missed}", file.packets);
        Ok(())
    }
}

/// A pcapng file (draft-ietf-opsawg-pcapng).
struct File {
    writer: PcapNgWriter<Box<dyn Write>>,
    name: String,
    /// In the order in which they stand in the file.
    interfaces: Vec<String>,
    packets: usize,
}

impl File {
    fn create(path: &Path, force: bool) -> Result<Self> {
        let name = path.display().to_string();
        let out: Box<dyn Write> = if path == Path::new("-") {
            Box::new(io::stdout())
        } else {
            // What is captured may be private: only the owner reads it.
            let mut options = OpenOptions::new();
            options.write(true).truncate(true).mode(0o600);
            if force {
                options.create(true)
            } else {
                options.create_new(true)
            };
            Box::new(options.open(path).map_err(|error| refusal(&name, &error))?)
        };
        let application = format!("limiterctl {}", env!("CARGO_PKG_VERSION"));
        let section = SectionHeaderBlock {
            endianness: Endianness::native(),
            options: vec![SectionHeaderOption::UserApplication(application.into())],
            ..SectionHeaderBlock::default()
        };
        let out: Box<dyn Write> = Box::new(BufWriter::new(out));
        let writer = PcapNgWriter::with_section_header(out, section)
            .map_err(|error| unwritten(&name, &error))?;
        let mut file = Self { writer, name, interfaces: Vec::new(), packets: 0 };
        file.flush()?;
        Ok(file)
    }

    fn add(&mut self, time: &str, packet: &SampledPacket) -> Result<()> {
        let broken = || Error::failed("the daemon sent a packet that is none");
        let bytes = packet.bytes.as_deref().unwrap_or_default();
        let bytes = HEXLOWER.decode(bytes.as_bytes()).map_err(|_| broken())?;
        let time = humantime::parse_rfc3339(time).map_err(|_| broken())?;
        let number = self.interface(&packet.interface)?;
        let block = EnhancedPacketBlock {
            interface_id: number,
            timestamp: time.duration_since(UNIX_EPOCH).unwrap_or_default(),
            original_len: packet.length,
            data: Cow::Owned(bytes),
            options: vec![EnhancedPacketOption::Comment(comment(packet).into())],
        };
        let written = self.writer.write_pcapng_block(block);
        written.map_err(|error| unwritten(&self.name, &error))?;
        self.packets += 1;
        Ok(())
    }

    /// The number of an interface in the file.
    fn interface(&mut self, name: &str) -> Result<u32> {
        let number = self.interfaces.iter().position(|known| known == name);
        if number.is_none() {
            let block = InterfaceDescriptionBlock {
                linktype: DataLink::ETHERNET,
                snaplen: SNAP_LENGTH,
                options: vec![
                    InterfaceDescriptionOption::IfName(Cow::Owned(plain(name))),
                    InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
                ],
            };
            let written = self.writer.write_pcapng_block(block);
            written.map_err(|error| unwritten(&self.name, &error))?;
            self.interfaces.push(name.to_owned());
        }
        let number = number.unwrap_or(self.interfaces.len() - 1);
        u32::try_from(number).map_err(|_| Error::failed("there are too many interfaces"))
    }

    fn flush(&mut self) -> Result<()> {
        let done = self.writer.get_mut().flush();
        done.map_err(|error| unwritten(&self.name, &PcapError::IoError(error)))
    }
}

/// Such as `drop source_rate policy=udp weight=12`.
fn comment(packet: &SampledPacket) -> String {
    let policy = packet.policy.as_deref().map(|policy| format!(" policy={}", plain(policy)));
    let verdict = packet.verdict.replace('_', "-");
    let (reason, policy, weight) = (&packet.reason, policy.unwrap_or_default(), packet.weight);
    format!("{verdict} {reason}{policy} weight={weight}")
}

fn refusal(name: &str, error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::AlreadyExists => {
            Error::new(Kind::Guarded, format!("{name} exists")).hint("overwrite it with --force")
        }
        io::ErrorKind::PermissionDenied => {
            Error::new(Kind::Permission, format!("{name} may not be written"))
                .hint("name a file in a directory of yours")
        }
        _ => Error::failed(format!("cannot write {name}: {error}"))
            .hint("name a file in a directory that exists"),
    }
}

fn unwritten(name: &str, error: &PcapError) -> Error {
    match error {
        // Whoever read has read enough.
        PcapError::IoError(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            std::process::exit(0)
        }
        PcapError::IoError(error) => Error::failed(format!("cannot write {name}: {error}")),
        error => Error::failed(format!("cannot write {name}: {error}")),
    }
}
