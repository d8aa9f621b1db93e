from mmctl.cli import main

main()
