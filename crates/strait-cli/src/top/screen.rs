//! The terminal as ratatui draws on it: raw mode, the alternate screen, and control sequences.
//!
//! It replaces ratatui's backends: their crates also read keys and catch signals, which
//! [`super::keyboard`] and `strait_os::process` do, and bring a second version of rustix.

use std::fs::File;
use std::io::{self, Write as _};
use std::panic;
use std::sync::Arc;

use ratatui::Terminal;
use ratatui::backend::{Backend, WindowSize};
use ratatui::buffer::Cell;
use ratatui::layout::{Position, Size};
use ratatui::style::{Color, Modifier};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::output::print_stderr;
use crate::terminal;

/// Control sequences of xterm ("XTerm Control Sequences") and ECMA-48.
const ENTER_ALTERNATE_SCREEN: &[u8] = b"\x1b[?1049h";
const LEAVE_ALTERNATE_SCREEN: &[u8] = b"\x1b[?1049l";
const HIDE_CURSOR: &[u8] = b"\x1b[?25l";
const SHOW_CURSOR: &[u8] = b"\x1b[?25h";
const CLEAR: &[u8] = b"\x1b[2J";
const PLAIN: &[u8] = b"\x1b[0m";

/// Symbol for a cell with a control character: U+FFFD, replacement character.
const REPLACEMENT: &str = "\u{fffd}";

/// Parameters of SGR (ECMA-48 s8.3.117) for each attribute.
const ATTRIBUTES: [(Modifier, u8); 9] = [
    (Modifier::BOLD, 1),
    (Modifier::DIM, 2),
    (Modifier::ITALIC, 3),
    (Modifier::UNDERLINED, 4),
    (Modifier::SLOW_BLINK, 5),
    (Modifier::RAPID_BLINK, 6),
    (Modifier::REVERSED, 7),
    (Modifier::HIDDEN, 8),
    (Modifier::CROSSED_OUT, 9),
];

/// The terminal's modes before the picture.
pub(super) struct Modes {
    input: File,
    before: Termios,
}

impl Modes {
    /// Reads the modes. A panic restores them first, so that its message can be read.
    pub(super) fn save() -> io::Result<Arc<Self>> {
        let input = terminal::input()?;
        let modes = Arc::new(Self { before: tcgetattr(&input)?, input });
        let (own, report) = (modes.clone(), panic::take_hook());
        panic::set_hook(Box::new(move |panic| {
            if let Err(error) = own.restore() {
                print_stderr(format_args!("strait: restore the terminal: {error}\n"));
            }
            report(panic);
        }));
        Ok(modes)
    }

    /// Enters raw mode and the alternate screen.
    pub(super) fn begin(&self) -> io::Result<Terminal<Screen>> {
        let mut raw = self.before.clone();
        raw.make_raw();
        tcsetattr(&self.input, OptionalActions::Now, &raw)?;
        print(ENTER_ALTERNATE_SCREEN)?;
        Terminal::new(Screen::new())
    }

    /// Restores the modes, leaves the alternate screen and shows the cursor, also if
    /// [`begin`](Self::begin) failed halfway. A failure of one does not skip the other: a panic
    /// would print its message on the alternate screen, and ratatui shows the cursor later.
    pub(super) fn restore(&self) -> io::Result<()> {
        let restored = tcsetattr(&self.input, OptionalActions::Now, &self.before);
        print(&[LEAVE_ALTERNATE_SCREEN, SHOW_CURSOR].concat())?;
        Ok(restored?)
    }
}

fn print(bytes: &[u8]) -> io::Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(bytes)?;
    output.flush()
}

/// Foreground, background and attributes of a cell.
type Look = (Color, Color, Modifier);

/// Writer of cells as control sequences. A frame is written at once.
pub(super) struct Screen {
    frame: Vec<u8>,
    cursor: Position,
    has_colours: bool,
}

impl Screen {
    fn new() -> Self {
        Self { frame: Vec::new(), cursor: Position::ORIGIN, has_colours: terminal::allows_colours() }
    }

    fn move_to(&mut self, x: u16, y: u16) -> io::Result<()> {
        write!(self.frame, "\x1b[{};{}H", u32::from(y) + 1, u32::from(x) + 1)
    }

    /// Sets all attributes anew (SGR), which is shorter than a list of the differences.
    fn set(&mut self, (foreground, background, attributes): Look) -> io::Result<()> {
        self.frame.extend_from_slice(b"\x1b[0");
        for (attribute, parameter) in ATTRIBUTES {
            if attributes.contains(attribute) {
                write!(self.frame, ";{parameter}")?;
            }
        }
        if self.has_colours {
            self.colour(38, foreground)?;
            self.colour(48, background)?;
        }
        self.frame.push(b'm');
        Ok(())
    }

    /// Adds the parameters for a colour of the foreground (38) or the background (48), by its
    /// number (ITU-T T.416 s13.1.8, with semicolons as xterm has them).
    fn colour(&mut self, ground: u8, colour: Color) -> io::Result<()> {
        let number = match colour {
            Color::Reset => return Ok(()),
            Color::Rgb(red, green, blue) => {
                return write!(self.frame, ";{ground};2;{red};{green};{blue}");
            }
            Color::Indexed(number) => number,
            Color::Black => 0,
            Color::Red => 1,
            Color::Green => 2,
            Color::Yellow => 3,
            Color::Blue => 4,
            Color::Magenta => 5,
            Color::Cyan => 6,
            Color::Gray => 7,
            Color::DarkGray => 8,
            Color::LightRed => 9,
            Color::LightGreen => 10,
            Color::LightYellow => 11,
            Color::LightBlue => 12,
            Color::LightMagenta => 13,
            Color::LightCyan => 14,
            Color::White => 15,
        };
        write!(self.frame, ";{ground};5;{number}")
    }

    fn print(&mut self, sequence: &[u8]) -> io::Result<()> {
        self.frame.extend_from_slice(sequence);
        self.flush()
    }
}

impl Backend for Screen {
    fn draw<'a, I>(&mut self, content: I) -> io::Result<()>
    where
        I: Iterator<Item = (u16, u16, &'a Cell)>,
    {
        let (mut next, mut look) = (None, None);
        for (x, y, cell) in content {
            if next != Some((x, y)) {
                self.move_to(x, y)?;
            }
            next = x.checked_add(1).map(|x| (x, y));
            let own: Look = (cell.fg, cell.bg, cell.modifier);
            if look != Some(own) {
                self.set(own)?;
                look = Some(own);
            }
            // The name of an interface may contain control sequences, which ratatui's spans keep.
            let is_safe = !cell.symbol().contains(char::is_control);
            let symbol = if is_safe { cell.symbol() } else { REPLACEMENT };
            self.frame.extend_from_slice(symbol.as_bytes());
        }
        self.frame.extend_from_slice(PLAIN);
        Ok(())
    }

    fn hide_cursor(&mut self) -> io::Result<()> {
        self.print(HIDE_CURSOR)
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        self.print(SHOW_CURSOR)
    }

    /// Returns the position that was set last. The terminal would report its own among the keys.
    fn get_cursor_position(&mut self) -> io::Result<Position> {
        Ok(self.cursor)
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> io::Result<()> {
        self.cursor = position.into();
        self.move_to(self.cursor.x, self.cursor.y)?;
        self.flush()
    }

    fn clear(&mut self) -> io::Result<()> {
        self.print(CLEAR)
    }

    fn size(&self) -> io::Result<Size> {
        let size = terminal::size()?;
        Ok(Size { width: size.ws_col, height: size.ws_row })
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        let size = terminal::size()?;
        Ok(WindowSize {
            columns_rows: Size { width: size.ws_col, height: size.ws_row },
            pixels: Size { width: size.ws_xpixel, height: size.ws_ypixel },
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        let printed = print(&self.frame);
        self.frame.clear();
        printed
    }
}

#[cfg(test)]
mod tests {
    use ratatui::buffer::Buffer;
    use ratatui::layout::Rect;
    use ratatui::style::{Style, Stylize as _};

    use super::*;

    /// Returns the control sequences for one line of two texts.
    fn drawn(has_colours: bool, style: Style) -> String {
        let mut screen = Screen { frame: Vec::new(), cursor: Position::ORIGIN, has_colours };
        let empty = Buffer::empty(Rect::new(0, 0, 10, 2));
        let mut buffer = empty.clone();
        buffer.set_string(2, 1, "日a", style);
        buffer.set_string(8, 1, "b", Style::new());
        screen.draw(empty.diff(&buffer).into_iter()).unwrap();
        String::from_utf8(screen.frame).unwrap()
    }

    #[test]
    fn cells_are_drawn_with_moves_over_gaps_and_changes_of_their_look() {
        let style = Style::new().red().on_white().bold().reversed();
        let text = "\x1b[2;3H\x1b[0;1;7;38;5;1;48;5;15m日\x1b[2;5Ha\x1b[2;9H\x1b[0mb\x1b[0m";
        assert_eq!(drawn(true, style), text);
        let rgb = Style::new().fg(Color::Rgb(1, 2, 3)).bg(Color::Indexed(200));
        assert!(drawn(true, rgb).contains("\x1b[0;38;2;1;2;3;48;5;200m日"));
    }

    #[test]
    fn user_without_colours_gets_attributes_alone() {
        assert!(drawn(false, Style::new().red().bold()).starts_with("\x1b[2;3H\x1b[0;1m日"));
    }

    #[test]
    fn control_characters_are_replaced() {
        let mut screen = Screen { frame: Vec::new(), cursor: Position::ORIGIN, has_colours: false };
        let cells = ["e", "\x1b", "\u{9b}", "\x07"].map(Cell::new);
        screen.draw(cells.iter().zip(0..).map(|(cell, x)| (x, 0, cell))).unwrap();
        assert_eq!(
            String::from_utf8(screen.frame).unwrap(),
            "\x1b[1;1H\x1b[0me\u{fffd}\u{fffd}\u{fffd}\x1b[0m"
        );
    }
}
