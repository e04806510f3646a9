//! Many sites, and reloads of them under load.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use lab::wait_until;
use strait_proxy::{Clock, Config, Proxy};

use crate::pool_rig::Server;
use crate::rig::{Client, LIMIT};

const SITES: usize = 1000;
const POOLS: usize = 50;
const CLIENTS: usize = 3;
const RELOADS: usize = 6;

/// Configuration with many sites, each with three routes. The fixed responses have the version.
fn config(servers: &[Server], version: usize) -> Config {
    let mut toml = "workers = 2\ntimeouts.drain = 1\nlisten = [\"127.0.0.1:0\"]\n".to_owned();
    for pool in 0..POOLS {
        let own = &servers[pool % servers.len()].text;
        writeln!(toml, "[pool.p{pool}]\nservers = [\"{own} weight={}\"]", 1 + version).unwrap();
    }
    for site in 0..SITES {
        write!(
            toml,
            "[[site]]\nhosts = [\"www{site}.example\", \"*.{site}.example\"]\n\
             [[site.route]]\npool = \"p{}\"\n\
             [[site.route]]\npath = \"/version\"\nrespond = {{ body = \"{site} {version}\" }}\n\
             [[site.route]]\npath = \"/limited\"\nrate = {{ requests = 100000, burst = 100000, clients = 8 }}\nrespond = {{ body = \"ok\" }}\n",
            site % POOLS
        )
        .unwrap();
    }
    Config::from_toml(&toml).unwrap()
}

#[test]
fn reload_of_many_sites_under_load_fails_no_request() {
    let servers = [Server::start(), Server::start()];
    let mut proxy = Proxy::start(&config(&servers, 0), Clock::system()).unwrap();
    let (address, done, is_over) = (proxy.address(), AtomicUsize::new(0), AtomicBool::new(false));
    let ask = |client: &mut Client, host: &str, path: &str| {
        client.send(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        let answer = client.answer().expect("the connection stays open");
        assert_eq!(answer.status(), 200, "{host}{path}: {}", answer.head);
        answer.text()
    };
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (ask, done, is_over) = (&ask, &done, &is_over);
            scope.spawn(move || {
                let mut client = Client::to(address);
                let mut newest = 0;
                for turn in number.. {
                    let site = turn * 7919 % SITES;
                    ask(&mut client, &format!("www{site}.example"), "/x");
                    ask(&mut client, &format!("a.{site}.example"), "/limited");
                    // A connection gets the settings of its worker, which only become newer.
                    let text = ask(&mut client, &format!("www{site}.example"), "/version");
                    let (own, version) = text.split_once(' ').unwrap();
                    let version: usize = version.parse().unwrap();
                    assert!(own == site.to_string() && version >= newest, "{text} after {newest}");
                    newest = version;
                    done.fetch_add(3, Ordering::SeqCst);
                    if is_over.load(Ordering::SeqCst) && newest == RELOADS {
                        return;
                    }
                }
            });
        }
        for version in 1..=RELOADS {
            let before = done.load(Ordering::SeqCst);
            assert!(wait_until(LIMIT, || done.load(Ordering::SeqCst) > before + 30));
            assert!(proxy.reload(&config(&servers, version)).unwrap().is_empty());
        }
        is_over.store(true, Ordering::SeqCst);
    });
    // A response can reach its client before it is counted.
    let all = done.load(Ordering::SeqCst) as u64;
    assert!(wait_until(LIMIT, || proxy.report().requests == all), "{all}: {:?}", proxy.report());
    assert!(servers.iter().all(|server| server.asked() > 0));
}
