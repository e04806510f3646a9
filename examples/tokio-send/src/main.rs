//! Sends 64 MiB to everyone who connects, on one thread: `tokio-send [ADDRESS]`, and `nc ADDRESS | wc -c` beside it.
//!
//! All connections share one engine and one buffer, which is lent to the kernel as often as that pays.

use std::error::Error;
use std::time::Duration;

use strait_transfer::{Options, Plan, Segment};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{sleep, timeout};
use tokio_send::{AsyncEngine, AsyncSender};

/// Times that the buffer is sent: 64 MiB with the engine's default of 256 KiB.
const TIMES: usize = 256;
/// How long a peer may take for all of it.
const LIMIT: Duration = Duration::from_mins(1);
/// How long to leave a listener alone that failed.
const PAUSE: Duration = Duration::from_millis(100);

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9000".into());
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, serve(&address))
}

async fn serve(address: &str) -> Result<(), Box<dyn Error>> {
    let engine = AsyncEngine::new(Options::default())?;
    let mut body = engine.with(|engine| engine.buffer()).ok_or("the engine has no buffer")?;
    body.fill(b'.');
    let len = body.len();
    let body = body.freeze(0..len);
    let mut plan = Plan::new().with(Segment::Bytes(b"64 MiB of dots\n".as_slice().into()));
    (0..TIMES).for_each(|_| plan.push(Segment::Shared(body.clone())));
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // It was gone before it was taken, or there are no descriptors: the others go on.
                eprintln!("accept: {error}");
                sleep(PAUSE).await;
                continue;
            }
        };
        let (engine, plan) = (engine.clone(), plan.clone());
        spawn_local(async move {
            match timeout(LIMIT, send(&engine, stream, plan)).await {
                Ok(Ok(account)) => println!("{peer}: {account}"),
                Ok(Err(error)) => eprintln!("{peer}: {error}"),
                Err(_) => eprintln!("{peer}: has not taken all in {} s", LIMIT.as_secs()),
            }
        });
    }
}

/// Sends a plan; the account of it, for people.
async fn send(engine: &AsyncEngine, stream: TcpStream, plan: Plan) -> Result<String, Box<dyn Error>> {
    let mut sender = AsyncSender::new(engine, stream.into_std()?)?;
    sender.send(plan).await?;
    sender.finish().await?;
    Ok(sender.sender().account().to_string())
}
