//! A browser through the forward proxy: a page with its style, script and images, which a second
//! browser gets from the store.

use lab::{Launch, program_or_skip, wait_until};

use crate::rig::{LIMIT, Proxy, Setup};
use crate::servers::{Kind, Web, write_old};

const BROWSER: &str = "chromium-headless-shell";
const IMAGES: usize = 12;

/// Page with a style, a script and more images than a browser has connections. The script reports
/// the loaded ones.
fn page() -> String {
    let images = (0..IMAGES).map(|image| format!("<img src='{image}.svg'>")).collect::<Vec<_>>().concat();
    format!(
        "<!DOCTYPE html><html><head><link rel='stylesheet' href='style.css'><link rel='icon' href='data:,'></head>
<body>{images}<script src='script.js'></script></body></html>"
    )
}

const SCRIPT: &str = "addEventListener('load', () => {
    const images = [...document.images].filter(image => image.naturalWidth == 7).length;
    document.body.dataset.loaded = [images, getComputedStyle(document.body).color].join(' ');
});";

fn browse(proxy: &Proxy, url: &str) -> String {
    let profile = tempfile::tempdir().unwrap();
    let launch =
        Launch::new(BROWSER).args(["--no-sandbox", "--disable-gpu", "--disable-background-networking"]);
    // By default browsers do not use a proxy for addresses of this machine.
    let launch = launch.args(["--proxy-bypass-list=<-loopback>", &format!("--proxy-server={}", proxy.url())]);
    let launch = launch.arg(format!("--user-data-dir={}", profile.path().display()));
    launch.args(["--dump-dom", url]).run(LIMIT).unwrap().success().text()
}

#[test]
fn a_browser_loads_a_page_and_a_second_one_loads_it_from_the_store() {
    if !program_or_skip(BROWSER) {
        return;
    }
    let make = |files: &std::path::Path| {
        write_old(&files.join("index.html"), page().as_bytes());
        write_old(&files.join("style.css"), b"body { color: rgb(1, 2, 3); }");
        write_old(&files.join("script.js"), SCRIPT.as_bytes());
        for image in 0..IMAGES {
            let text = format!("<svg xmlns='http://www.w3.org/2000/svg' width='7' height='{}'/>", image + 1);
            write_old(&files.join(format!("{image}.svg")), text.as_bytes());
        }
    };
    let Some(web) = Web::start(Kind::Nginx, make) else { return };
    let proxy = Setup::forward().start();
    for _ in 0..2 {
        let dom = browse(&proxy, &web.url("index.html"));
        assert!(dom.contains(&format!("data-loaded=\"{IMAGES} rgb(1, 2, 3)\"")), "{dom}");
        assert!(wait_until(LIMIT, || web.sent().len() >= IMAGES + 3));
    }
    assert_eq!(web.sent().len(), IMAGES + 3, "{:?}", web.sent());
}
