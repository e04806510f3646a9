/*
 * Makes mark 1 in a metered guest: the plugin (lab/vm/meter.c) logs the instructions so far.
 */
int main(void)
{
	__asm__ volatile("nopl 0x53540001(%%rax)" ::: "memory");
	return 0;
}
