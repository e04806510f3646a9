//! Broker for tests: Apache Kafka as one process, which is broker and controller, with topics that
//! are read by Kafka's own consumer.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{Launch, Process, fetched_or_skip, program_or_skip, wait_until};

/// Time limit for the broker's start and for a tool.
const LIMIT: Duration = Duration::from_secs(100);
/// Property of the consumer that prints each byte of a record that is not a printable character of
/// ASCII, and each backslash, as `\xHH`.
const BYTES: &str = "value.deserializer=org.apache.kafka.common.serialization.BytesDeserializer";
/// Identifier of the cluster.
const CLUSTER: &str = "AAAAAAAAAAAAAAAAAAAAAA";

/// Address of a broker, which may be down, and the directory of its topics.
#[derive(Debug)]
pub struct Kafka {
    program: PathBuf,
    port: u16,
    controller: u16,
    /// Port in the answers of the broker, for a relay between it and its clients.
    advertised: u16,
    directory: tempfile::TempDir,
    properties: String,
    process: Option<Process>,
}

/// Stored record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoredRecord {
    /// Partition.
    pub partition: u32,
    /// Key; `null` without one.
    pub key: String,
    /// Value of the header `id`.
    pub id: String,
    /// Content.
    pub content: Vec<u8>,
}

impl StoredRecord {
    /// Returns the content as text.
    pub fn text(&self) -> String {
        String::from_utf8(self.content.clone()).expect("the record is text")
    }
}

impl Kafka {
    /// Chooses ports. Skips the test if Kafka is not installed.
    pub fn down_or_skip() -> Option<Self> {
        let program = fetched_or_skip("kafka/bin/kafka").filter(|_| program_or_skip("java"))?;
        let [port, controller] = free_ports();
        let directory = tempfile::tempdir().expect("a directory is created");
        let kafka = Self {
            program,
            port,
            controller,
            advertised: port,
            directory,
            properties: String::new(),
            process: None,
        };
        Some(kafka)
    }

    /// Starts a broker without topics. Skips the test if Kafka is not installed.
    pub fn up_or_skip() -> Option<Self> {
        let mut kafka = Self::down_or_skip()?;
        kafka.format(&[]);
        kafka.start();
        Some(kafka)
    }

    /// Names another port to clients from the next start on.
    pub fn advertise(&mut self, port: u16) {
        self.advertised = port;
    }

    /// Adds a listener with a security protocol, and its properties. Returns its port.
    pub fn add_listener(&mut self, protocol: &str, properties: &str) -> u16 {
        let [port] = free_ports();
        let Self { port: plain, controller, .. } = self;
        // The last one of two properties with the same name counts.
        self.properties = format!(
            "listeners=PLAINTEXT://127.0.0.1:{plain},CONTROLLER://127.0.0.1:{controller},{protocol}://127.0.0.1:{port}\n\
             advertised.listeners=PLAINTEXT://127.0.0.1:{plain},{protocol}://127.0.0.1:{port}\n\
             listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,{protocol}:{protocol}\n\
             {properties}"
        );
        port
    }

    /// Creates the directory of the topics, with further arguments.
    pub fn format(&self, arguments: &[&str]) {
        let configuration = self.write_configuration();
        let launch = self.launch("kafka.tools.StorageTool").args(["format", "-t", CLUSTER, "-c"]);
        let launch = launch.arg(configuration).args(arguments);
        let _ = launch.run(LIMIT).expect("the tool ends").success();
    }

    /// Starts the broker. After a kill the controller first waits for the end of its last session.
    pub fn start(&mut self) {
        let configuration = self.write_configuration();
        let process = self.launch("kafka.Kafka").arg(configuration).spawn().expect("Kafka starts");
        let is_up = wait_until(LIMIT, || TcpStream::connect(("127.0.0.1", self.port)).is_ok());
        assert!(is_up, "{}{}", process.stdout(), process.stderr());
        self.process = Some(process);
    }

    /// Kills the broker.
    pub fn stop(&mut self) {
        self.process = None;
    }

    /// Creates a topic.
    pub fn create_topic(&self, name: &str, partitions: u32, settings: &[&str]) {
        let settings = settings.iter().flat_map(|setting| ["--config", setting]);
        let launch = self.tool("org.apache.kafka.tools.TopicCommand");
        let launch = launch.args(["--create", "--topic", name, "--partitions", &partitions.to_string()]);
        let _ = launch.args(settings).run(LIMIT).expect("the tool ends").success();
    }

    /// Returns the number of records of a topic: the sum of the ends of its partitions.
    pub fn count(&self, topic: &str) -> u64 {
        let launch = self.tool("org.apache.kafka.tools.GetOffsetShell").args(["--topic", topic]);
        let ends = launch.run(LIMIT).expect("the tool ends").success().text();
        let end = |line: &str| line.rsplit(':').next().and_then(|end| end.parse::<u64>().ok());
        ends.lines().map(|line| end(line).expect("TOPIC:PARTITION:END")).sum()
    }

    /// Returns the records of a topic, which must have some.
    pub fn records(&self, topic: &str) -> Vec<StoredRecord> {
        let launch = self.tool("org.apache.kafka.tools.consumer.ConsoleConsumer");
        let count = self.count(topic).to_string();
        let launch = launch.args(["--topic", topic, "--from-beginning", "--max-messages", &count]);
        let shown = ["print.partition=true", "print.headers=true", "print.key=true", BYTES];
        let launch = launch.args(shown.into_iter().flat_map(|property| ["--property", property]));
        launch.run(LIMIT).expect("the tool ends").text().lines().filter_map(record).collect()
    }

    /// Returns the value of --to for a topic.
    pub fn url(&self, topic: &str) -> String {
        format!("kafka://127.0.0.1:{}/{topic}", self.advertised)
    }

    /// Returns the port of the broker itself.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the directory of the broker's files.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    fn launch(&self, class: &str) -> Launch<'static> {
        Launch::new(&self.program).arg(class)
    }

    fn tool(&self, class: &str) -> Launch<'static> {
        self.launch(class).arg("--bootstrap-server").arg(format!("127.0.0.1:{}", self.port))
    }

    fn write_configuration(&self) -> PathBuf {
        let Self { port, controller, advertised, .. } = self;
        let path = self.directory.path().join("server.properties");
        let data = self.directory.path().join("data");
        let properties = format!(
            "process.roles=broker,controller\n\
             node.id=1\n\
             controller.quorum.voters=1@127.0.0.1:{controller}\n\
             controller.listener.names=CONTROLLER\n\
             listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n\
             advertised.listeners=PLAINTEXT://127.0.0.1:{advertised}\n\
             log.dirs={}\n\
             broker.heartbeat.interval.ms=500\n\
             broker.session.timeout.ms=3000\n\
             auto.create.topics.enable=false\n\
             offsets.topic.replication.factor=1\n\
             offsets.topic.num.partitions=1\n\
             group.initial.rebalance.delay.ms=0\n\
             {}",
            data.display(),
            self.properties
        );
        std::fs::write(&path, properties).expect("the configuration is written");
        path
    }
}

/// Returns ports that are free now.
fn free_ports<const N: usize>() -> [u16; N] {
    let listeners = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").expect("loopback has free ports"));
    listeners.map(|listener| listener.local_addr().expect("it is bound").port())
}

/// Parses a line of the consumer: `Partition:0`, `id:VALUE`, key and content, separated by tabs.
fn record(line: &str) -> Option<StoredRecord> {
    let mut fields = line.splitn(4, '\t');
    let partition = fields.next()?.strip_prefix("Partition:")?.parse().ok()?;
    let id = fields.next()?.strip_prefix("id:")?.to_owned();
    let (key, content) = (fields.next()?.to_owned(), unescaped(fields.next()?));
    Some(StoredRecord { partition, key, id, content })
}

/// Returns the bytes of a printed record.
fn unescaped(text: &str) -> Vec<u8> {
    let mut parts = text.split("\\x");
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (byte, rest) = part.split_at(2);
        bytes.push(u8::from_str_radix(byte, 16).expect("two digits"));
        bytes.extend(rest.as_bytes());
    }
    bytes
}
